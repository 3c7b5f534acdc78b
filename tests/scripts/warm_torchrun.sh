# Read by bash before each command of a notebook under nbmake: see tests/warm_notebooks.py.
torchrun() {
  local real
  real=$(type -P torchrun)
  if [ -t 1 ] && [ -t 2 ] && [ -n "${RANK_BY_RANK_WARM:-}" ]; then
    "$RANK_BY_RANK_PYTHON" -I -S "${BASH_SOURCE[0]%/*}/warm_torchrun.py" "$real" "$@"
  else
    "$real" "$@"
  fi
}
