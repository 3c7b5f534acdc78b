# Read by bash before each command of a notebook under nbmake: see tests/warm_notebooks.py.
warm() {
  local real
  real=$(type -P "$1")
  if [ -n "${RANK_BY_RANK_WARM:-}" ]; then
    "$RANK_BY_RANK_PYTHON" -I -S "${BASH_SOURCE[0]%/*}/warm_shell.py" "$real" "${@:2}"
  else
    "$real" "${@:2}"
  fi
}
torchrun() { warm torchrun "$@"; }
python() { warm python "$@"; }
