"""What objects do: models and what wraps them, loaders, optimizers, groups, frameworks."""

import ast
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from .conditions import Condition, Leaf, leaves, negate
from .expressions import Expressions
from .names import bare, role_of_call, role_of_name, who_of_name, words
from .state import Call
from .values import (
    COUNTED,
    DIFFERS,
    GRADIENT,
    HALF,
    MEASURED,
    OWN,
    PART,
    RANK,
    ROUND,
    SAVED,
    SHAPE,
    STEPPED,
    UNEVEN,
    UNKNOWN,
    Choice,
    Class,
    Const,
    Function,
    Items,
    Lib,
    Method,
    Module,
    Pairs,
    Role,
    Thing,
    Value,
    each,
    inside,
    is_none,
    join,
    plain,
    role,
    things,
)

ITSELF = words("""
    to cuda cpu half bfloat16 double float type contiguous detach detach_ requires_grad_ share_memory
    share_memory_ apply pin_memory resolve absolute expanduser unwrap npu xpu compile type_as view_as
    """)
COPIES = words("clone item tolist numpy mean sum max min squeeze view reshape flatten")
SHAPES = {"size", "numel", "dim", "nelement", "count"}
COUNTING = {"sum", "count_nonzero", "numel", "count"}
SYNCHRONISING = ("reduce", "gather", "sync", "broadcast", "all_")
SAYING = words("""
    info warning add_scalar add_scalars log log_metrics write debug report log_dict log_metric
    log_scalar log_value
    """)
OF_DEVICE = words("""
    shape dtype device size numel dim requires_grad data_ptr record_stream element_size is_cuda ndim
    """)
MEETINGS = {  # methods of a framework's object at which all ranks meet
    "accelerator": words(
        "wait_for_everyone gather gather_for_metrics reduce pad_across_processes save_state check_trigger"
    ),
    "fabric": words("barrier all_gather all_reduce broadcast save load clip_gradients"),
    "engine": words("save_checkpoint load_checkpoint"),
    "trainer": words("train fit evaluate predict validate test"),
}
PREPARING = words(
    "prepare prepare_model prepare_data_loader setup setup_module setup_optimizers setup_dataloaders"
)
CONTEXT_METHODS = words("""
    main_process_first local_main_process_first autocast accumulate no_sync join_uneven_inputs
    split_between_processes profile rank_zero_first init_module init_tensor
    """)
PLAIN_METHODS = words("""
    print log log_dict end_training init_trackers free_memory save register_for_checkpointing set_trigger
    clip_grad_norm_ launch seed_everything
    """)
PLATFORM = {"os.name": "posix", "sys.platform": "linux"}  # nccl is there alone
BUFFERS = "the forward of a wrapped model with batch norm, which sends its buffers"
MODEL_NAMES = words("model net unet transformer encoder decoder generator discriminator")


class Forward(NamedTuple):
    """A call of a model: through a wrapper or not, with gradients or without."""

    model: Value
    through: str
    grad: bool
    number: int
    by: Value  # the wrapper, or the model itself


class Objects(Expressions):
    """Attributes and methods of what is not of the script."""

    def __init__(self, project: Any, main: Any) -> None:
        super().__init__(project, main)
        self.notes: dict[str, Any] = {}  # what rules remember
        self.made: list[Thing] = []  # objects of the script's own classes
        self.together: list[Value] = []  # models that all ranks train together
        self.pending: list[Value] = []  # what an async collective is still at work on
        self.seeds: dict[str, str] = {}
        self.managers: set[str] = set()  # packages that average gradients and deal out data in their own way
        self.spawned: list[Value] = []  # how many processes are started on this machine
        self.norms = 0
        self.number = "rank"  # what get_rank() returns: "index" where one machine alone joins

    # --- groups and meetings ---

    def unread_seed(self) -> bool:
        """Whether a function that is not read may have set the seed."""
        return any("seed" in name.lower() for name in self.unread)

    def is_part(self, group: Value | None) -> bool:
        """Whether a group may be a part of the ranks; no group is all of them."""
        if is_none(group):
            return False
        for value in each(group):
            if (
                isinstance(value, Const)
                and value.data is None
                or isinstance(value, Lib)
                and value.name.endswith("WORLD")
            ):
                continue
            if not (isinstance(value, Thing) and value.kind == "group" and value.note("world")):
                return True
        return False

    def is_part_of(self, kind: str, call: Call) -> bool:
        """Whether a wrapper is given a group that may be a part of the ranks."""
        place = 1 if kind == "fsdp" else 99
        mesh = call.get("device_mesh")
        return self.is_part(call.get("process_group", place)) or (
            mesh is not None and self.is_part_mesh(mesh)
        )

    def is_part_mesh(self, mesh: Value | None) -> bool:
        """Whether a mesh may hold a part of the ranks; one of a single dimension, the world, does not."""
        for value in each(mesh):
            shape = (
                value.call.get("mesh_shape", 1) if isinstance(value, Thing) and value.kind == "mesh" else None
            )
            if not (isinstance(shape, Items) and len(shape.items) == 1 and role(shape.items[0]) == "world"):
                return not is_none(value)
        return False

    def meet(self, last: str, meeting: Any, call: Call) -> Value:
        group = call.get("group", meeting.group) or call.get("process_group")
        tensor = call.get("tensor", 0) or call.get("object_list") or call.get("tensor_list")
        if last in ("barrier", "monitored_barrier"):
            tensor = None
        before = Value(vary=join(part for arg in call.given() for part in inside(arg)))
        self.see(last, call, tensor, meets="" if self.is_part(group) else last, result=before)
        work = Thing("work", call.node, call, inner=tensor)
        if meeting.makes >= 0:
            made = call.args[meeting.makes] if meeting.makes < len(call.args) else tensor
            if last in ("gather", "gather_object"):
                made = call.get("gather_list", 1) or call.get("object_gather_list")
            if last.startswith("broadcast"):
                self.spread(made)
            self.clear(made)
            if plain(call.get("async_op")) is True and made is not None:
                for output in inside(made):
                    if not isinstance(output, Const):
                        output.mark(pending=work)
                        self.pending.append(output)
        return work

    def spread(self, value: Value | None) -> None:
        """What one rank has put into a list goes to all: ``[x if rank == 0 else None]``."""
        if isinstance(value, Items):
            for place, item in enumerate(value.items):
                if isinstance(item, Choice):
                    sent = [part for _, part in item.choices if not is_none(part)]
                    value.items[place] = sent[0] if sent else item

    def make_group(self, last: str, call: Call) -> Value:
        ranks = call.get("ranks", 0)
        made = Thing("group", call.node, call)
        whole = last == "new_group" and (is_none(ranks) or self.is_all_ranks(ranks))
        made.mark(world=whole)
        local = plain(call.get("use_local_synchronization")) is True
        self.see(last, call, made, meets="" if local else last)
        return made if last == "new_group" or last == "split_group" else Items([made, Items([made], True)])

    def is_all_ranks(self, ranks: Value | None) -> bool:
        return any(
            thing.kind == "range" and len(thing.call.args) == 1 and role(thing.call.args[0]) == "world"
            for thing in things(ranks, "range")
        )

    def message(self, last: str, call: Call) -> Value:
        tensor = call.get("tensor", 0)
        self.see(last, call, tensor)
        if last in ("recv", "irecv") and tensor is not None:
            for received in each(tensor):
                if not isinstance(received, Const):
                    received.vary |= UNKNOWN
        work = Thing("work", call.node, call, inner=tensor)
        if last == "irecv" and tensor is not None:
            for received in each(tensor):
                received.mark(pending=work)
                self.pending.append(received)
        return Items([work], True) if last == "batch_isend_irecv" else work

    def use(self, value: Value, node: ast.AST) -> None:
        """A value is read: is a collective still at work on it?"""
        if not self.pending:
            return
        for candidate in each(value):
            if candidate.note("pending") is not None:
                self.see("read too early", Call(node, [candidate]), candidate.note("pending"))

    def wait(self, work: Value | None) -> None:
        """A collective is done; one that is not known: any of them."""
        known = things(work, "work")
        nodes = [part.call.node for part in known]
        for tensor in list(self.pending):
            collective = tensor.note("pending")
            if not known or collective is None or collective.call.node in nodes:
                tensor.mark(pending=None)
                self.pending.remove(tensor)

    # --- models ---

    def wrap(self, made: Thing, call: Call) -> Thing:
        """A model that all ranks train together from here on."""
        inner = call.get("module", 0)
        made.inner = inner
        made.call = call
        made.mark(part=self.is_part_of(made.kind, call))
        for model in each(inner):
            model.mark(wrapper=made)
        made.mark(norm=all(model.note("norm") for model in each(inner)))
        self.see(made.kind, call, inner, result=made)
        self.together.append(made)
        return made

    def root(self, value: Value) -> Value:
        """The model inside of its wrappers, the whole of which it is a part."""
        for _ in range(20):
            if (
                isinstance(value, Thing)
                and value.kind in ("ddp", "fsdp", "dp", "engine")
                and value.inner is not None
            ):
                value = next(each(value.inner), value)
            elif isinstance(value, Thing) and value.kind == "parameters" and value.inner is not None:
                value = value.inner
            elif isinstance(value.note("of"), Value):
                value = value.note("of")
            else:
                break
        return value

    def how(self, value: Value) -> str:
        """How ranks share a model: "fsdp", "ddp", or "" if each has its own."""
        if isinstance(value, Thing) and value.kind in ("ddp", "fsdp") and not value.note("part"):
            return value.kind
        if isinstance(value, Thing) and value.kind == "engine":
            return "ddp"
        if value.note("sharded") is not None:
            return "fsdp"
        return "ddp" if value.note("replicated") is not None else ""

    def is_together(self, value: Value) -> bool:
        return any(self.how(model) for model in each(value))

    def has_grad(self) -> bool:
        return not self.is_under("no_grad", "inference_mode")

    def context_name(self, value: Value) -> str:
        if isinstance(value, Thing):
            return value.inner.name if isinstance(value.inner, Lib) else value.kind
        return value.name

    def is_under(self, *names: str, contexts: Any = None) -> bool:
        """Whether a ``with`` around it is, or may be, one of these."""
        around = self.contexts if contexts is None else contexts
        return any(self.context_name(part) in names for context in around for part in each(context))

    def forward_of(self, callee: Value, call: Call, through: str | None = None) -> Forward:
        return Forward(
            self.root(callee),
            self.how(callee) if through is None else through,
            self.has_grad(),
            len(self.events),
            callee,
        )

    def forward(self, callee: Value, call: Call, inner: bool = False) -> Value:
        """Call a model, or something like one."""
        how = self.how(callee)
        meets = "the forward of a sharded model" if how == "fsdp" else ""
        if how == "ddp" and callee.note("norm") and self.sends_buffers(callee):
            meets = BUFFERS
        output = self.mixed(call.given())
        if type(callee) is Value and any(things(arg, "optimizer") for arg in call.given()):
            self.escape(call, callee.name or "a function")
        stepped = [arg for arg in call.args[1:] if things(arg, "optimizer") or is_named(arg, "optim")]
        unread = type(callee) is Value or isinstance(callee, Thing) and callee.kind == "object"
        if stepped and unread and call.args[0].src:
            self.backward(call.args[0], call)  # timm's NativeScaler, and those like it
            self.see("optimizer.step", call, stepped[0])
        if isinstance(callee, Thing) and callee.kind == "loss":
            self.see("loss", call, call.args[0] if call.args else None)
        self.see("forward", call, callee, meets, output)
        output.src = output.src | {self.forward_of(callee, call)}
        output.vary &= ~(COUNTED | SHAPE)
        own = output.vary & (PART | RANK) and not output.vary & UNKNOWN
        if how and output.vary & (OWN | UNKNOWN | RANK):
            output.vary = (output.vary | OWN) & ~(UNKNOWN | RANK)
        if own and not self.has_grad():
            output.vary |= MEASURED
        output.vary &= ~HALF
        if self.is_under("autocast"):
            output.vary |= HALF
        return output

    def sends_buffers(self, callee: Value) -> bool:
        return not (
            isinstance(callee, Thing)
            and callee.call is not None
            and plain(callee.call.get("broadcast_buffers")) is False
        )

    def backward(self, of: Value, call: Call) -> Value:
        """A backward pass; its gradients are averaged if the forward went through a wrapper."""
        used = [forward for forward in of.src if forward.grad]
        together = any(forward.through for forward in used)
        if not used and of.vary & UNKNOWN | (not of.src) and self.together:
            together = any(self.is_together(model) for model in self.together)
        waits = any(
            self.context_name(context) in ("no_sync", "no_backward_sync") for context in self.contexts
        )
        self.see(
            "backward", call, of, meets="the backward of a wrapped model" if together and not waits else ""
        )
        return Const(None)

    # --- attributes ---

    def attribute(self, of: Value, name: str) -> Value:
        if isinstance(of, Choice):
            return self.choice(
                [(way, self.attribute(value, name)) for way, value in of.choices if not is_none(value)]
                or [(True, Value())]
            )
        if isinstance(of, Lib):
            return self.attribute_of_package(of, name)
        if isinstance(of, Module):
            return self.attribute_of_module(of, name)
        if isinstance(of, Class):
            member = self.member(of, name)
            return member if member is not None else self.hinted(name)
        stored = of.attrs.get(name) if of.attrs else None
        if stored is not None:
            return stored
        if isinstance(of, Thing):
            known = self.attribute_of_thing(of, name)
            if known is not None:
                return known
        if isinstance(of, Const | Items | Pairs):
            return Method(of, name) if not isinstance(of, Pairs) or name not in of.items else of.items[name]
        return self.attribute_of_tensor(of, name)

    def attribute_of_tensor(self, of: Value, name: str) -> Value:
        if name == "grad":
            gradient = self.part(of, name)
            gradient.vary |= GRADIENT
            return gradient
        if name == "shape":
            return Value(vary=SHAPE if of.vary & OWN else of.vary & UNKNOWN, key=("shape", of.key))
        if name == "data":
            return of
        if name in ("dtype", "device", "ndim", "is_cuda", "requires_grad", "is_leaf"):
            return Value(key=(name, of.key))
        return self.part(of, name)

    def attribute_of_package(self, of: Lib, name: str) -> Value:
        full = f"{of.name}.{name}"
        if full in PLATFORM:
            return Const(PLATFORM[full])
        if of.name.startswith("mpi4py") and name in ("rank", "size"):
            return Role("rank" if name == "rank" else "world")
        if full.startswith(("torch.", "os.", "numpy.", "np.")):
            return Lib(full)
        known = role_of_name(name)
        test = who_of_name(name)
        if known or test is not None:
            return self.hinted(name) if known else Value(name=name, test=test, key=("lib", full))
        return Lib(full)

    def attribute_of_module(self, of: Module, name: str) -> Value:
        imported = self.imported(of, name)
        if imported is not None:
            return imported
        known = self.hinted(name)
        if isinstance(known, Role) or known.test is not None:
            return known
        return Lib(f"{of.name}.{name}")

    def attribute_of_own(self, of: Thing, name: str) -> Value | None:
        """Of an object of a class of the script."""
        assert of.made is not None
        member = self.member(of.made, name)
        if isinstance(member, Function):
            if member.marks & {"property", "cached_property"}:
                return self.call_value(member.of(of), Call(of.node or ast.Pass(), []))
            return self.bound(member, of)
        if member is None and not name.startswith("_"):
            return self.own_method(of, "__getattr__", Call(of.node or ast.Pass(), [Const(name)]))
        return member

    def attribute_of_thing(self, of: Thing, name: str) -> Value | None:
        attribute = self.attribute_of_own(of, name) if of.made is not None else None
        if attribute is not None:
            return attribute
        if name == "module" and of.kind in ("ddp", "fsdp", "dp", "engine"):
            return of.inner or Value()
        if of.kind in ("ddp", "dp", "fsdp") and of.made is not None and of.inner is not None:
            return self.attribute(of.inner, name)
        if of.kind == "loader" and name in ("sampler", "batch_sampler", "dataset"):
            given = (
                of.call.get(name, {"dataset": 0, "sampler": 3, "batch_sampler": 4}[name]) if of.call else None
            )
            if given is None and name == "batch_sampler" and of.call:
                given = of.call.get("sampler", 3)
            return given if given is not None else self.part(of, name)
        if of.kind == "other sampler" and name == "sampler" and of.inner is not None:
            return of.inner
        if of.kind not in ("namespace", "instance", "object") and (
            name in METHODS or name in MEETINGS["accelerator"]
        ):
            return Method(of, name)
        if of.kind == "fabric" and name in ("global_rank",):
            return Role("rank")
        return None

    # --- methods ---

    def call_object(self, of: Value, name: str, call: Call) -> Value:
        """A method of something that is not of the script."""
        if name == "module" and isinstance(of, Thing) and of.inner is not None:
            return self.call_value(of.inner, call)
        if name not in OF_DEVICE and name != "wait":
            self.use(of, call.node)
        do = METHODS.get(name)
        if do is not None:
            result = do(self, of, call, name)
            if result is not None:
                return result
        if isinstance(of, Thing):
            do = OF_KIND.get(of.kind)
            if do is not None:
                result = do(self, of, call, name)
                if result is not None:
                    return result
        return self.call_unknown_method(of, name, call)

    def call_unknown_method(self, of: Value, name: str, call: Call) -> Value:
        told = self.told_by_name(of, name, call)
        if told is not None:
            return told
        if name == "get" and type(of) is Value and call.args and isinstance(call.args[0], Const):
            return self.item(of, call.args[0])
        result = self.mixed([of, *call.given()])
        if name.endswith("_") and not name.startswith("_") and type(of) is Value:  # in place
            of.vary |= result.vary
            of.src = of.src | result.src
            return of
        if isinstance(of, Const | Items) and not call.args:
            return result
        if name in SHAPES:
            result.vary = (SHAPE if result.vary & OWN else 0) | result.vary & (UNKNOWN | UNEVEN)
            result.key = (name, of.key)
        if any(word in bare(name) for word in SYNCHRONISING):
            result.vary |= UNKNOWN
            if type(of) is Value:
                of.vary |= UNKNOWN
        self.note_models(of, name, call, result)
        if isinstance(of, Thing) and of.kind == "metric":
            result.vary &= ~(DIFFERS | MEASURED)
        return result

    def told_by_name(self, of: Value, name: str, call: Call) -> Value | None:
        """What the name of a method tells, where nothing else does."""
        known = role_of_call(name)
        if known:
            of_mesh = "mesh" in of.name.lower() or bool(call.args)
            return Value(vary=RANK, name="mesh rank") if of_mesh else Role(known)
        test = who_of_name(name)
        if test is not None:
            return Value(name=name, test=test, key=("method", of.key, name))
        if name in SAYING:
            self.see("say", call, of, result=Value(name=name))
            return Value()
        if isinstance(of, Const):
            return None
        return self.launch_maybe(name, call, launched=True)

    def note_models(self, of: Value, name: str, call: Call, result: Value) -> None:
        """The models that a method computes with: its own, and those it is given."""
        own = isinstance(of, Thing) and of.kind in ("module", "parameter")
        if own or self.root(of).note("wrapper") is not None or self.is_together(of):
            result.src = result.src | {self.forward_of(of, call)}
            self.see("method of model", call, of, result=Value(name=name))
        for given in call.given():
            for model in each(given):
                if self.is_together(model):
                    result.src = result.src | {self.forward_of(model, call)}
                    result.vary |= OWN if result.vary & (OWN | UNKNOWN) else 0

    # --- loops ---

    def item_of_thing(self, over: Thing, node: ast.AST) -> Value | None:
        if over.kind == "range":
            name = "world range" if any(role(arg) == "world" for arg in over.call.args) else ""
            start = over.call.args[0].vary & SAVED if len(over.call.args) > 1 else 0
            item = Value(vary=ROUND | STEPPED | start, name=name)
            if over.call.args:
                stop = over.call.args[min(1, len(over.call.args) - 1)]
                item.mark(last=self.computed(stop, "Sub", Const(1)).key)
            return item
        if over.kind == "enumerate":
            start = over.call.get("start", 1)
            return Items(
                [
                    Value(vary=ROUND | STEPPED | (start.vary & SAVED if start else 0)),
                    self.item_of(over.inner or Value(), node),
                ]
            )
        if over.kind == "zip":
            return Items([self.item_of(arg, node) for arg in over.call.args])
        if over.kind in ("iter", "iterator"):
            item = over.note("item")
            return item if item is not None else self.item_of(over.inner or Value(), node)
        if over.kind == "loader":
            return self.batch_of(over, node)
        if over.kind == "parameters":
            owner = self.root(over)
            item = owner.note("parameter")
            if item is None:
                item = Value(vary=ROUND | GRADIENT, name="parameter")
                item.mark(of=over)
                owner.mark(parameter=item)
            return Items([Value(vary=ROUND), item]) if over.note("named") else item
        if over.made is not None and self.member(over.made, "__iter__") is not None:
            got = self.own_method(over, "__iter__", Call(node, []))
            if isinstance(got, Thing) and got.kind == "iterator":
                return got.note("item")
            if isinstance(got, Thing) and got is not over:
                return self.item_of(got, node)
            return self.own_method(over, "__next__", Call(node, []))
        return None

    def batch_of(self, loader: Thing, node: ast.AST) -> Value:
        self.see("iterate", Call(node, []), loader)
        vary = self.share_of(loader)
        batch = Value(vary=vary | ROUND, name="batch")
        batch.mark(batch=True)
        return batch

    def share_of(self, loader: Thing) -> int:
        """How the batches of a loader differ between ranks."""
        if loader.note("managed"):
            return OWN | PART
        call = loader.call
        if call is None:
            return UNKNOWN
        data = call.get("dataset", 0)
        sampler = call.get("sampler", 3)
        batches = call.get("batch_sampler", 4)
        vary = (data.vary if data is not None else UNKNOWN) & (UNEVEN | UNKNOWN)
        if data is not None and data.vary & (RANK | OWN):
            vary |= OWN | (PART if data.vary & RANK else 0)
            vary &= ~UNKNOWN if data.vary & RANK else ~0
        for candidate in (
            [*each(sampler), *each(batches)]
            if sampler is not None and batches is not None
            else each(sampler or batches or Const(None))
        ):
            if isinstance(candidate, Thing) and candidate.kind == "sampler":
                whole = candidate.call is not None and plain(candidate.call.get("num_replicas", 1)) == 1
                vary = vary if whole else (vary | OWN | PART) & ~UNKNOWN
            elif isinstance(candidate, Thing) and candidate.kind == "other sampler":
                vary |= candidate.vary & (UNEVEN | UNKNOWN) | (OWN if candidate.vary & DIFFERS else 0)
            elif not is_none(candidate):
                vary |= OWN if candidate.vary & RANK else UNKNOWN
        if (
            not vary & OWN
            and plain(call.get("shuffle", 2)) is not False
            and call.get("shuffle", 2) is not None
        ):
            vary |= UNKNOWN
        return vary

    def is_of(self, value: Value, kind: Value) -> Condition:
        """Whether it is an object of a class, or of one of several."""
        kinds = [cls for part in (kind.items if isinstance(kind, Items) else [kind]) for cls in each(part)]
        answers = [{is_of_class(part, cls) for part in each(value)} for cls in kinds]
        if {True} in answers:
            return True
        if all(answer == {False} for answer in answers):
            return False
        return Leaf("option", ("isinstance", value.key, *(cls.key for cls in kinds)))


TYPES = {"str": str, "int": int, "float": float, "bool": bool}
SEQUENCES = ("list", "tuple", "Sequence", "Iterable")
WRAPPERS = {
    "DistributedDataParallel": "ddp",
    "DDP": "ddp",
    "DataParallel": "dp",
    "FullyShardedDataParallel": "fsdp",
    "FSDP": "fsdp",
}


def is_of_class(value: Value, kind: Value) -> bool | None:
    """None if it is not known."""
    last = "" if isinstance(kind, Class) else kind.name.rpartition(".")[2]
    if isinstance(value, Const):
        return last in TYPES and isinstance(value.data, TYPES[last])
    if isinstance(value, Items | Pairs):
        return last in (SEQUENCES if isinstance(value, Items) else ("dict", "Mapping"))
    if not isinstance(value, Thing):
        return None
    if isinstance(kind, Class):
        if value.made is not None:
            return any(kind.body is cls.body for cls in value.made.family())
        return False if value.kind in WRAPPERS.values() else None
    if last == "Module":
        return value.kind in (*WRAPPERS.values(), "module")
    if last == "DistributedSampler":
        return value.kind == "sampler"
    return value.kind == WRAPPERS[last] if last in WRAPPERS else None


Do = Callable[[Any, Any, Call, str], Value | None]
METHODS: dict[str, Do] = {}
OF_KIND: dict[str, Do] = {}


def method(names: str) -> Callable[[Do], Do]:
    def note(do: Do) -> Do:
        for name in names.split():
            METHODS[name] = do
        return do

    return note


def methods_of(kinds: str) -> Callable[[Do], Do]:
    def note(do: Do) -> Do:
        for kind in kinds.split():
            OF_KIND[kind] = do
        return do

    return note


def is_named(of: Value, *words: str) -> bool:
    return any(word in of.name.lower() for word in words)


@method(" ".join(ITSELF))
def _itself(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    if name in ("cuda", "to", "npu", "xpu"):
        s.see("move", call, of, result=Value(name=name))
    if name == "requires_grad_":
        s.see("requires_grad", call, of, result=call.get("requires_grad", 0) or Const(True))
    if name == "apply" and not call.args:
        return None
    if name in ("float", "double") and of.vary & HALF:
        result = s.mixed([of])
        result.vary &= ~HALF
        return result
    return of


@method(" ".join(COPIES))
def _copy(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    if isinstance(of, Const | Items | Pairs | Lib) or (isinstance(of, Thing) and of.kind != "object"):
        return None
    result = s.mixed([of])
    result.name = of.name
    if name in COUNTING and of.vary & OWN:
        result.vary |= COUNTED
    return result


@method("sample rsample")
def _sample(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    if not isinstance(of, Thing) or of.kind != "object" or call.get("random_state") is not None:
        return None
    sample = s.mixed([of])
    if s.seeds.get("torch") != "same":
        sample.vary |= OWN
    return sample


@method("train eval")
def _mode(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    if isinstance(of, Thing) and of.kind in ("trainer", "engine trainer"):
        return None
    if len(call.given()) > 1:
        return None
    if name == "train" and plain(call.get("mode", 0)) is False:
        name = "eval"
    s.see(name, call, of)
    return of


@method("parameters named_parameters buffers named_buffers modules named_modules children named_children")
def _parameters(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    made = Thing("parameters", call.node, call, inner=of)
    made.mark(named=name.startswith("named"), of=of)
    return made


@method("state_dict")
def _state(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    gathers = isinstance(of, Thing) and of.kind == "fsdp" and not of.note("part")
    made = Thing("state", call.node, call, inner=of, vary=GRADIENT)
    meets = "state_dict of a sharded model, which gathers" if gathers else ""
    s.see("state_dict", call, of, meets, made)
    return made


@method("load_state_dict")
def _load_state(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    s.see("load_state_dict", call, of, result=call.args[0] if call.args else None)
    return Value()


@method("backward")
def _backward(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    if isinstance(of, Thing) and of.kind in MEETINGS or is_named(of, "accelerator", "fabric"):
        loss = call.args[0] if call.args else Value()
        s.see("backward", call, loss, meets=f"{of.name or 'its'}.backward")
        return Const(None)
    return s.backward(of, call)


@method("full_tensor")
def _full(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    s.see("full_tensor", call, of, meets="full_tensor, which gathers")
    return s.mixed([of])


@method("step")
def _step(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    kind = of.kind if isinstance(of, Thing) else ""
    if kind in ("scheduler", "plateau") or (not kind and is_named(of, "sched")):
        s.see("scheduler.step", call, of)
    elif kind == "scaler" or (not kind and is_named(of, "scaler")):
        s.see("scaler.step", call, of)
    elif kind == "optimizer" or is_named(of, "optim", "opt"):
        s.see("optimizer.step", call, of)
        for given in call.args[:1]:
            if isinstance(given, Function):
                s.call_value(given, Call(call.node, []))
    elif kind and kind != "engine":
        return None
    return Value()


@method("scale unscale_ update")
def _of_scaler(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    if isinstance(of, Pairs) and name == "update":
        for given in call.args[:1]:
            of.items.update(given.items if isinstance(given, Pairs) else {...: given})
        for key, value in call.keywords.items():
            of.items[key] = value
        return Const(None)
    if isinstance(of, Thing) and of.kind == "scaler" or (type(of) is Value and is_named(of, "scaler")):
        s.see(f"scaler.{name}", call, of)
        result = s.mixed(call.args[:1])
        if name == "scale":
            result.mark(scaled=of)
        return result
    return None


@method("set_epoch")
def _set_epoch(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    s.see("set_epoch", call, of, result=call.args[0] if call.args else call.get("epoch"))
    return Const(None)


@method("no_sync join summon_full_params no_backward_sync accumulate")
def _context(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    if isinstance(of, Const | Items) or (name == "join" and not s.is_together(of)):
        return None
    enabled = call.get("enabled", 1) if name == "no_backward_sync" else None
    made = Thing("context", call.node, call, inner=Lib(name))
    if enabled is not None and not (isinstance(enabled, Const) and enabled.data is True):
        test = s.now(s.truth(enabled))
        return s.choice(
            [(test, made), (negate(test), Thing("context", call.node, call, inner=Lib("nullcontext")))]
        )
    return made


@method("register_post_accumulate_grad_hook register_hook register_full_backward_hook")
@method("register_forward_pre_hook register_forward_hook register_comm_hook register_step_post_hook")
def _hook(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    hook = call.args[-1] if call.args else None
    if isinstance(hook, Function):
        s.call_value(hook, Call(call.node, [Value(vary=GRADIENT, name="parameter")]))
    return Value()


@method("set_requires_gradient_sync set_is_last_backward set_requires_all_reduce")
def _gradient_sync(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    s.see("gradient sync", call, of, result=call.args[0] if call.args else None)
    return Const(None)


@method("wait synchronize")
def _wait(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    if isinstance(of, Lib):
        return None
    s.wait(of)
    return Value()


@method("clip_grad_norm_")
def _clip(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    s.see("clip", call, call.args[0] if call.args else of, result=of)
    return Value()


@method("append add extend insert setdefault pop get items values keys copy clear popleft appendleft")
def _container(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    if isinstance(of, Pairs):
        return _of_dict(s, of, call, name)
    if isinstance(of, Items):
        if name in ("append", "add", "insert", "appendleft") and call.args:
            if len(of.items) < 12:
                of.items.append(call.args[-1])
            of.more = of.more or len(of.items) >= 12 or bool(s.loops)
            of.vary |= call.args[-1].vary & (DIFFERS | UNKNOWN | MEASURED)
            if any(
                leaf.kind == "own"
                for guard in s.guards
                if guard.kind == "if"
                for leaf in leaves(guard.condition)
            ):
                of.vary |= UNEVEN
        elif name == "extend" and call.args:
            given = call.args[0]
            if isinstance(given, Items):
                of.items += given.items[:12]
            of.more = True
            of.vary |= join(call.args)
        elif name in ("pop", "popleft"):
            return s.mixed(of.items[:6])
        return Const(None)
    if type(of) is Value and name in ("append", "add", "extend", "insert"):
        of.vary |= join(call.args) & (DIFFERS | UNKNOWN | MEASURED)
        s.escape(call, of.name or "a container")
        return Const(None)
    return None


def _of_dict(s: Objects, of: Pairs, call: Call, name: str) -> Value | None:
    if name in ("get", "pop", "setdefault") and call.args:
        key = call.args[0]
        if isinstance(key, Const) and key.data in of.items:
            return of.items[key.data]
        return call.args[1] if len(call.args) > 1 and ... not in of.items else s.item(of, key)
    if name == "items":
        made = Thing("iterator", call.node)
        values = list(of.items.values())
        made.mark(item=Items([Value(vary=ROUND), s.mixed(values)]))
        return made
    if name in ("values", "keys"):
        return Items(list(of.items.values()) if name == "values" else [Value()], True)
    if name == "copy":
        return Pairs(dict(of.items))
    return Const(None)


@method(
    "format with_suffix joinpath with_name strip replace lower rename mkdir exists is_file startswith "
    "endswith touch unlink"
)
def _of_text(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    if name == "rename" or (name == "replace" and len(call.args) == 1):
        s.see("rename", call, of)
        return Value()
    if name in ("exists", "is_file", "startswith", "endswith", "mkdir", "touch", "unlink"):
        return Value(key=(name, of.key, *(arg.key for arg in call.args)))
    if name == "joinpath":
        return s.joined_path([of, *call.args])
    return s.text_of([of, *call.given(), *fields(s, of, call), Const(name)])


def fields(s: Objects, of: Value, call: Call) -> list[Value]:
    """The attributes that ``"{meter.avg}".format(meter=meter)`` asks for."""
    attributes = []
    text = plain(of)
    for name, attribute in re.findall(r"{(\w+)\.(\w+)", text) if isinstance(text, str) else ():
        if name in call.keywords:
            attributes.append(s.attribute(call.keywords[name], attribute))
    return attributes


@method(
    "add_argument add_argument_group parse_args parse_known_args set_defaults parse_args_into_dataclasses "
    "add_mutually_exclusive_group"
)
def _options(s: Objects, of: Value, call: Call, name: str) -> Value | None:
    if name == "add_argument":
        texts = [arg.data for arg in call.args if isinstance(arg, Const) and isinstance(arg.data, str)]
        longest = max(texts, key=len, default="").lstrip("-").replace("-", "_")
        wanted = plain(call.get("dest")) or longest
        if "local_rank" in longest and "--rank" in texts:
            of.own()["option rank"] = Role(
                "local rank"
            )  # torch.distributed.launch gives it by the other name
        default = call.get("default")
        if isinstance(default, Const) and isinstance(default.data, str) and isinstance(wanted, str):
            of.own()[f"option {wanted}"] = default
        return Value()
    if name in ("add_argument_group", "add_mutually_exclusive_group"):
        return of
    if name == "parse_args_into_dataclasses":
        return Items([Value() for _ in range(6)], True)
    if name == "set_defaults":
        return Const(None)
    made = Thing("namespace", call.node, call)
    for key, value in (of.attrs or {}).items():
        if isinstance(value, Role):
            made.own()[key[7:]] = value
        if key.startswith("option ") and isinstance(value, Const):
            option = s.hinted(key[7:])
            if type(option) is Value:
                option.mark(default=value)
            made.own()[key[7:]] = option
    return made if name == "parse_args" else Items([made, Value()])


# --- frameworks ---


@methods_of("accelerator fabric engine trainer")
def _of_framework(s: Objects, of: Thing, call: Call, name: str) -> Value | None:
    first = call.args[0] if call.args else None
    if name in MEETINGS[of.kind]:
        s.see(name, call, first, meets=f"{of.kind}.{name}")
        result = s.mixed(call.given())
        result.vary &= ~(DIFFERS | MEASURED | UNKNOWN)
        return result
    if name in PREPARING:
        made = [_prepared(s, arg, call) for arg in call.args]
        return made[0] if len(made) == 1 else Items(made, call.more)
    if name in ("unwrap_model", "get_state_dict") and first is not None:
        inner = s.root(first)
        return inner if name == "unwrap_model" else Thing("state", call.node, call, inner=inner)
    if name == "launch" and isinstance(first, Function):
        return s.call_value(first, Call(call.node, [of, *call.args[1:]], call.keywords))
    if name == "seed_everything":
        s.seed("all", first, call)
    if name == "skip_first_batches":
        return first
    if name in CONTEXT_METHODS:
        return Thing("context", call.node, call, inner=Lib(name))
    return None if name not in PLAIN_METHODS and of.kind != "trainer" else Value()


def _prepared(s: Objects, value: Value, call: Call) -> Value:
    """What Accelerate or Fabric makes of a model or a loader."""
    if isinstance(value, Choice):
        return s.choice([(way, _prepared(s, part, call)) for way, part in value.choices])
    if isinstance(value, Thing) and value.kind == "loader":
        made = Thing("loader", call.node, value.call)
        made.mark(managed=True)
        value.mark(managed=True)
        return made
    if (
        isinstance(value, Thing)
        and value.kind == "module"
        or type(value) is Value
        and is_named(value, *MODEL_NAMES)
    ):
        made = Thing("ddp", call.node, Call(call.node, [value]), inner=value)
        made.mark(managed=True, part=False)
        s.together.append(made)
        return made
    return value


@methods_of("sampler loader optimizer scheduler plateau scaler parser group store")
def _of_known(s: Objects, of: Thing, call: Call, name: str) -> Value | None:
    return Value(vary=of.vary & UNKNOWN)


@methods_of("generator")
def _of_generator(s: Objects, of: Thing, call: Call, name: str) -> Value | None:
    if name == "manual_seed":
        given = call.args[0] if call.args else Value()
        of.vary = given.vary & (DIFFERS | UNKNOWN)
        return of
    drawn = s.mixed(call.given())
    drawn.vary |= of.vary
    if name == "shuffle" and call.args:
        call.args[0].vary |= of.vary
    drawn.mark(drawn=True)
    return drawn


@methods_of("mesh")
def _of_mesh(s: Objects, of: Thing, call: Call, name: str) -> Value | None:
    if name in ("get_local_rank", "get_rank", "get_coordinate"):
        return Value(vary=RANK, name="mesh rank")
    if name == "get_group":
        return Thing("group", call.node, call)
    return Value()


@methods_of("dataset subset stream")
def _of_dataset(s: Objects, of: Thing, call: Call, name: str) -> Value | None:
    vary = of.vary | join(call.given()) & RANK
    made = Thing(of.kind, call.node, call, inner=of.inner if isinstance(of.inner, Lib) else of, vary=vary)
    if name == "shard":
        made.kind = "subset" if of.kind != "stream" else "stream"
    if name in ("train_test_split",):
        return Pairs({"train": made, "test": made})
    return made
