"""What calls of torch and of the packages around it do."""

import builtins
import sys
from collections.abc import Callable
from typing import NamedTuple

from .conditions import Leaf, apart, either, leaves
from .names import bare, role_of_call, who_of_name, words
from .objects import Objects
from .state import Call, Exit
from .values import (
    COUNTED,
    DIFFERS,
    EVEN,
    MEASURED,
    OWN,
    RANK,
    SAVED,
    SHAPE,
    UNEVEN,
    UNKNOWN,
    Choice,
    Class,
    Const,
    Function,
    Items,
    Lib,
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

# Packages whose functions only compute, show or read something.
HARMLESS = (
    words(
        """
    PIL albumentations argparse builtins cv2 datasets diffusers einops evaluate flash_attn h5py
    huggingface_hub humanize hydra imageio librosa lmdb loguru lpips matplotlib ml_collections mlflow
    neptune nltk numpy omegaconf pandas peft psutil pydantic regex requests rich sacrebleu safetensors
    scipy seaborn sentencepiece simple_parsing skimage sklearn soundfile spacy submitit tabulate
    tensorboard tensorboardX termcolor tiktoken timm tokenizers torch torchao torchaudio torchdata
    torchinfo torchmetrics torchtext torchvision tqdm transformers typing_extensions tyro wandb
    webdataset yaml fire click typer gym gymnasium pettingzoo kornia monai torch_geometric ogb faiss
    fvcore iopath pycocotools editdistance jiwer sentence_transformers bitsandbytes xformers triton
    nvidia tensordict torchrl rouge_score nibabel SimpleITK dgl trimesh plyfile gradio zarr pyarrow
    polars joblib dill cloudpickle filelock prettytable colorama ftfy bert_score sacremoses apex
    jsonargparse absl accelerate lightning lightning_fabric pytorch_lightning easydict yacs scienceplots
    torch_ema clip open_clip decord av msgpack orjson simplejson ujson cpuinfo pynvml mpi4py
    """
    )
    | {""}
    | set(sys.stdlib_module_names)
)
# Packages that start processes, average gradients or deal out data in a way of their own.
MANAGING = words("""
    horovod ray fastai composer colossalai megatron mmengine mmcv deepspeed bagua ignite torch_xla jax
    tensorflow fairscale detectron2 smdistributed oneflow paddle
    """)


COMPUTING = words("torch numpy math builtins operator itertools os pathlib random torchvision statistics")


class Meeting(NamedTuple):
    """A collective: the positions of its group and of what it makes equal on all ranks (-1: nothing)."""

    group: int
    makes: int = 0


COLLECTIVES = {
    name: Meeting(group, makes)
    for (group, makes), names in {
        (
            2,
            0,
        ): "all_reduce all_reduce_coalesced broadcast broadcast_object_list all_gather all_gather_object "
        "all_gather_into_tensor all_gather_single all_gather_coalesced",
        (3, 0): "reduce",
        (3, 1): "gather gather_object",
        (3, -1): "scatter scatter_object_list reduce_scatter reduce_scatter_tensor reduce_scatter_single",
        (2, -1): "all_to_all",
        (4, -1): "all_to_all_single",
        (0, -1): "barrier monitored_barrier",
    }.items()
    for name in names.split()
}
OBJECT_COLLECTIVES = ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list")
RESULTS = words("all_reduce all_gather all_gather_tensor reduce broadcast gather all_gather_tensor_autograd")
CHECKPOINTING = words("""
    save async_save load save_state_dict load_state_dict get_state_dict get_model_state_dict
    get_optimizer_state_dict set_state_dict set_model_state_dict set_optimizer_state_dict
    """)
SYNCHRONISING = words("reduce gather sync broadcast agree barrier all_ avg_across average")
LOSSES = words("loss criterion objective forward compute metric accuracy error")
NORMS_IN = tuple(
    words(
        """
    resnet resnext wide_resnet mobilenet densenet efficientnet regnet inception googlenet shufflenet
    mnasnet deeplabv3 fcn_resnet lraspp
    """
    )
)
CLOCKS = words("""
    time.time time.perf_counter time.monotonic time.process_time datetime.datetime.now datetime.now
    time.time_ns time.perf_counter_ns timeit.default_timer datetime.datetime.utcnow
    """)
OF_PROCESS = {
    "os.getpid",
    "socket.gethostname",
    "platform.node",
    "uuid.uuid4",
    "os.urandom",
    "secrets.token_hex",
}
SAME = words("""
    tqdm trange auto.tqdm compile script convert_sync_batchnorm convert_syncbn_model record iter_wrapper
    as_tensor deref prepare_model_for_kbit_training cast prefetch optimize track checkpoint_wrapper
    """)
CONTEXTS = words("""
    no_grad inference_mode autocast nullcontext ExitStack suppress device set_grad_enabled enable_grad
    record_function profile Join FileLock SoftFileLock rank_zero_first patch loss_parallel
    context_parallel
    """)
RANDOM = words("""
    rand randn randint randperm normal bernoulli multinomial rand_like randn_like randint_like uniform
    random choice choices sample permutation randrange standard_normal gauss beta integers random_sample
    shuffle empty_like_random
    """)
IN_PLACE = ("random.shuffle", "numpy.random.shuffle")


def canonical(name: str) -> str:
    """A short name that is the same for all ways to import it: ``dist.all_reduce``, ``DataLoader``."""
    root, _, rest = name.partition(".")
    last = name.rpartition(".")[2]
    if root == "np":
        return f"numpy.{rest}"
    if root != "torch":
        return name
    for start, short in SHORT:
        if rest.startswith(start):
            return f"{short}{last}"
    return name


SHORT_NAMES = """
    distributed.checkpoint=dcp. distributed.tensor=tensor. distributed._tensor=tensor.
    distributed.device_mesh= distributed.fsdp= distributed._composable= distributed.optim=optim.
    distributed.algorithms= distributed.rpc=rpc. distributed.nn=results.
    distributed._functional_collectives=results. distributed.pipelining=pipelining. distributed.elastic=
    distributed.launcher= distributed=dist. multiprocessing=mp. utils.data= utils.tensorboard=
    utils.checkpoint=torch. optim.lr_scheduler=scheduler. optim=optim. nn.parallel= nn.functional=F.
    nn.utils= nn.SyncBatchNorm.= nn=nn. cuda.amp= cpu.amp= amp= cuda.=cuda. accelerator.=cuda.
    xpu.=cuda. npu.=cuda. profiler= autograd.profiler=
"""
SHORT = [tuple(pair.split("=")) for pair in SHORT_NAMES.split()]  # the first that fits


class Library(Objects):
    """Calls of packages, by their full names."""

    def call_library(self, name: str, call: Call) -> Value:
        short = canonical(name)
        last = short.rpartition(".")[2]
        root = name.lstrip(".").partition(".")[0]
        do = CALLS.get(short)
        if do is None and root in ROOTS:
            do = CALLS.get(last)
        if do is not None:
            return do(self, call, short)
        for start, family in FAMILIES.items():
            if short.startswith(start):
                result = family(self, call, short)
                if result is not None:
                    return result
        if name.startswith(".") or root not in HARMLESS:
            return self.call_unread(name, last, call)
        return self.call_harmless(short, last, call)

    def call_harmless(self, name: str, last: str, call: Call) -> Value:
        if last in SAME and call.args:
            return call.args[0]
        if last in CONTEXTS:
            return Thing("context", call.node, call, inner=Lib(last))
        known = role_of_call(last)
        if known:
            return Role(known)
        if name in CLOCKS or name in OF_PROCESS:
            return Value(vary=OWN if name in CLOCKS else OWN | RANK)
        self.launch_maybe(last, call, launched="launch" in last or "spawn" in last)
        result = self.mixed(call.given())
        if result.vary & RANK and name.partition(".")[0] not in COMPUTING:
            result.vary |= UNKNOWN
        if last[:1].isupper() or last in ("from_pretrained", "create_model", "get_peft_model", "from_config"):
            kind = (
                "module"
                if last in ("from_pretrained", "create_model", "get_peft_model", "from_config")
                and "token" not in name.lower()
                else "object"
            )
            kind = "metric" if name.startswith(("torchmetrics", "evaluate")) else kind
            return Thing(kind, call.node, call, inner=Lib(name), vary=result.vary, src=result.src)
        result.mark(made_by=name)
        return result

    def call_unread(self, name: str, last: str, call: Call) -> Value:
        """A function whose code is not there."""
        known = role_of_call(last)
        if known:
            return Role(known)
        test = who_of_name(last)
        if test is not None:
            return Value(name=last, test=test, key=("unread", last))
        if "seed" in bare(last) and call.args:
            self.seed("all", call.args[0] if call.args else None, call)
        if any(
            word in bare(last)
            for word in (
                "init_dist",
                "setup_dist",
                "distributed_mode",
                "init_process",
                "ddp_setup",
                "setup_ddp",
                "dist_init",
                "init_ddp",
            )
        ):
            self.joined = True
            self.see("unread join", call)
        self.unread.setdefault(name.lstrip("."), (self.frame.source, call.node))
        root = name.lstrip(".").partition(".")[0]
        if root in MANAGING and not any(
            leaf.kind == "option" for guard in self.guards for leaf in leaves(guard.condition)
        ):
            self.managers.add(root)
        launched = self.launch_maybe(last, call, launched=True)
        if launched is not None:
            return launched
        self.escape(call, last)
        result = self.mixed(call.given())
        wrapped = [value for given in call.given() for value in inside(given) if self.is_together(value)]
        for model in wrapped:
            result.src = result.src | {self.forward_of(model, call)}
        if wrapped and result.vary & (OWN | UNKNOWN):
            result.vary |= OWN
        word = bare(last)
        if not any(part in word for part in LOSSES) or any(part in word for part in SYNCHRONISING):
            result.vary |= UNKNOWN
        result.vary &= ~(MEASURED | COUNTED | SHAPE)
        result.name = last
        result.mark(unread=last)
        return result

    def escape(self, call: Call, name: str) -> None:
        """What is handed to code that is not read may be changed there."""
        for given in call.given():
            for value in inside(given):
                if isinstance(value, Thing | Value) and not isinstance(value, Const | Lib | Role):
                    value.mark(escaped=name)
                    if isinstance(value, Thing) and value.kind in ("instance", "partial"):
                        for part in list(value.own().values()):
                            if isinstance(part, Thing):
                                part.mark(escaped=name)

    # --- processes ---

    def launch_maybe(self, name: str, call: Call, launched: bool) -> Value | None:
        """Enter a function of the script that is handed to a launcher; None if it is none."""
        functions = [
            value
            for value in call.given()
            if isinstance(value, Function) or (isinstance(value, Thing) and value.kind == "partial")
        ]
        starts = any(
            word in name.lower()
            for word in ("launch", "spawn", "run", "fire", "cli", "main", "submit", "execute", "start")
        )
        if not functions or not starts:
            return None
        given = call.keywords.get("args")
        rest = [argument for argument in call.args if argument is not functions[0]]
        arguments = (
            given.items if isinstance(given, Items) else rest if name.lower() in ("run", "submit") else []
        )
        return self.launch(
            functions[0],
            list(arguments),
            call,
            launched and name.lower() not in ("fire", "cli", "run", "main"),
        )

    def launch(
        self, function: Value, arguments: list[Value], call: Call, launched: bool = True, index: bool = False
    ) -> Value:
        """Go through a function as the new processes do."""
        loops, self.loops = self.loops, []
        contexts, self.contexts = self.contexts, []
        guards, known = self.guards, self.known
        if launched:
            self.launches = True
            self.launched += 1
            self.guards = [guard for guard in guards if not apart(guard.condition)]  # it is another process
            self.known = {
                key: answer for key, answer in known.items() if isinstance(key, tuple) and key[0] == "option"
            }
        target = function.body if isinstance(function, Function) else None
        names = [parameter.arg for parameter in target.args.args] if target is not None else []
        if not index and names and len(names) == len(arguments) + 1 and arguments and launched or index:
            arguments = [Role("index"), *arguments]
        result = self.call_value(function, Call(call.node, arguments, more=not launched))
        if launched:
            self.launched -= 1
        self.loops, self.contexts, self.guards, self.known = loops, contexts, guards, known
        return result

    # --- seeds and random numbers ---

    def seed(self, library: str, value: Value | None, call: Call, differs: bool = False) -> None:
        if value is not None and not is_none(value):
            differs = differs or bool(value.vary & DIFFERS)
            for package in ("torch", "numpy", "random") if library == "all" else (library,):
                self.seeds[package] = "differs" if differs else "same"
        self.see("seed", call, value, result=Value(name=library))

    def drawn(self, library: str, call: Call, last: str) -> Value:
        """A random number: another one on each rank, unless all have the same seed."""
        generator = call.get("generator")
        alike = self.seeds.get(library) == "same"
        if generator is not None and not is_none(generator):
            alike = not generator.vary & DIFFERS
        number = self.mixed(call.given())
        if generator is None:
            self.see("draw", call, number, result=Value(name=library))
        if not alike:
            number.vary |= OWN
        if generator is None or generator.vary & RANK:
            number.mark(drawn=True)
        return number


# --- the tables ---

CALLS: dict[str, Callable[[Library, Call, str], Value]] = {}
FAMILIES: dict[str, Callable[[Library, Call, str], Value | None]] = {}
ROOTS = words("""
    torch torchvision torchdata apex accelerate lightning pytorch_lightning lightning_fabric
    transformers tqdm trl timm
    """)


def of(names: str) -> Callable:
    """The function that goes through calls of these names."""

    def note(do: Callable) -> Callable:
        for name in names.split():
            CALLS[name] = do
        return do

    return note


def family(start: str) -> Callable:
    def note(do: Callable) -> Callable:
        FAMILIES[start] = do
        return do

    return note


MADE = {  # what a call makes, which is an event of that name, too
    "accelerator": "Accelerator PartialState AcceleratorState",
    "alone": "dist.HashStore",
    "destroy_process_group": "dist.destroy_process_group",
    "shrink_group": "dist.shrink_group",
    "dp": "DataParallel",
    "dtensor": "tensor.distribute_tensor tensor.distribute_module",
    "fabric": "Fabric",
    "file": "builtins.open",
    "parser": "argparse.ArgumentParser transformers.HfArgumentParser HfArgumentParser",
    "sampler": "DistributedSampler StatefulDistributedSampler "
    "torchdata.stateful_dataloader.sampler.StatefulDistributedSampler",
    "scaler": "GradScaler ShardedGradScaler",
    "trainer": "Trainer Seq2SeqTrainer SFTTrainer DPOTrainer GRPOTrainer RewardTrainer PPOTrainer KTOTrainer "
    "LightningCLI",
}


def _making(kind: str) -> Callable:
    def make(s: Library, call: Call, name: str) -> Value:
        made = Thing(kind, call.node, call, call.get("module", 0) if kind == "dp" else None)
        s.joined = s.joined or kind in ("accelerator", "fabric", "trainer")
        s.see(kind, call, made)
        return made

    return make


SEEN = {  # what a call does, which is an event of that name: the argument that it happens to
    "set_device": ("cuda.set_device cuda.set_device_index", "device", 0),
    "save file": ("torch.save", "f", 1),
    "clip": ("clip_grad_norm_ clip_grad_norm clip_grad_value_", "parameters", 0),
    "rename": ("os.replace os.rename shutil.move", "dst", 1),
}
ANSWERS: dict[str, Callable[[Library, Call, str], Value]] = {  # what else calls return
    "dist.is_initialized": lambda s, call, _: (
        Const(True) if s.joined else Value(test=Leaf("option", "initialized"))
    ),
    "dist.is_available dist.is_torchelastic_launched dist.is_nccl_available dist.is_gloo_available": (
        lambda s, call, _: Const(True)
    ),
    "cuda.is_available": lambda s, call, _: Value(test=Leaf("option", "cuda"), key="cuda"),
    "cuda.device_count": lambda s, call, _: Role("local world"),
    "cuda.current_device cuda.memory_allocated cuda.max_memory_allocated cuda.memory_reserved "
    "cuda.mem_get_info cuda.max_memory_reserved psutil.virtual_memory": lambda s, call, _: Value(vary=OWN),
    "mp.get_context multiprocessing.get_context": lambda s, call, _: Lib("torch.multiprocessing"),
    "io.BytesIO tempfile.TemporaryFile tempfile.NamedTemporaryFile tempfile.TemporaryDirectory "
    "tempfile.mkdtemp tempfile.mkstemp": lambda s, call, _: Value(vary=OWN, name="own file"),
    "torch.initial_seed get_worker_info": lambda s, call, _: Value(
        vary=UNKNOWN if s.seeds.get("torch") == "same" else OWN
    ),
    "numpy.random.get_state random.getstate": lambda s, call, name: Value(
        vary=UNKNOWN if s.seeds.get(name.partition(".")[0]) == "same" else OWN
    ),
    "TensorDataset ConcatDataset ImageFolder FakeData": lambda s, call, _: Thing(
        "dataset", call.node, call, vary=join(call.given()) & ~OWN
    ),  # random ones stand for real data
    "datasets.load_dataset datasets.load_from_disk": lambda s, call, name: Thing(
        "stream" if plain(call.get("streaming")) is True else "dataset", call.node, call, Lib(name)
    ),
    "datasets.distributed.split_dataset_by_node": lambda s, call, _: Thing(
        "subset", call.node, call, call.get("dataset", 0), vary=RANK
    ),
    "torch.Generator": lambda s, call, _: Thing("generator", call.node, call, vary=OWN),
    "builtins.enumerate": lambda s, call, _: Thing(
        "enumerate", call.node, call, first_of(call), vary=join(call.args[:1])
    ),
    "builtins.zip": lambda s, call, _: Thing("zip", call.node, call, vary=join(call.args)),
    "builtins.next": lambda s, call, _: s.item_of(first_of(call), call.node),
    "collections.defaultdict": lambda s, call, _: Pairs(
        {...: s.call_value(first_of(call), Call(call.node, []))}
    ),
    "functools.partial": lambda s, call, _: Thing("partial", call.node, call, first_of(call)),
    "functools.wraps functools.lru_cache functools.cache atexit.register": lambda s, call, name: Lib(name),
    "os.environ.get os.getenv os.environ.setdefault os.environ.pop": lambda s, call, _: s.of_environment(
        plain(call.get("key", 0))
    ),
}


def first_of(call: Call) -> Value:
    return call.args[0] if call.args else Value()


def _seeing(event: str, argument: str, position: int) -> Callable:
    def see(s: Library, call: Call, name: str) -> Value:
        s.see(event, call, call.get(argument, position))
        return Value()

    return see


@of(
    "builtins.print tqdm.write tqdm.tqdm.write wandb.log mlflow.log_metrics mlflow.log_metric logging.info "
    "logging.warning trackio.log"
)
def _say(s: Library, call: Call, name: str) -> Value:
    s.see("say", call, result=Value(name=name.rpartition(".")[2]))
    return Const(None)


for _event, (_names, _argument, _position) in SEEN.items():
    of(_names)(_seeing(_event, _argument, _position))
for _names, _do in ANSWERS.items():
    of(_names)(_do)
for _kind, _names in MADE.items():
    of(_names)(_making(_kind))


@of(
    "dist.init_process_group dist.init_device_mesh init_device_mesh deepspeed.init_distributed DeviceMesh "
    "tensor.DeviceMesh tensor.init_device_mesh"
)
def _join(s: Library, call: Call, name: str) -> Value:
    last = name.rpartition(".")[2]
    store = call.get("store")
    alone = plain(call.get("world_size", 3)) == 1 or plain(call.get("backend", 0)) == "fake"
    alone = alone or store is not None and len(things(store, "alone")) == len(list(each(store)))
    s.see("alone" if alone else last, call, meets="" if alone else last)
    s.joined = s.joined or not alone
    if role(call.get("rank", 4)) == "index" or role(call.get("world_size", 3)) == "local world":
        s.number = "index"
    if "mesh" in last.lower():
        return Thing("mesh", call.node, call)
    return Const(None)


@of("dist.get_rank dist.get_node_local_rank dist.get_world_size dist.get_group_rank dist.get_global_rank")
def _rank(s: Library, call: Call, name: str) -> Value:
    last = name.rpartition(".")[2]
    group = call.get("group", 0)
    part = s.is_part(group)
    if last == "get_world_size":
        return Value(name="group size", key=("group size", group.key)) if part and group else Role("world")
    if last == "get_node_local_rank":
        return Role("local rank")
    return Role("group rank" if part or last == "get_group_rank" else s.number)


@of("cuda.device")
def _device_context(s: Library, call: Call, name: str) -> Value:
    s.see("device context", call, call.get("device", 0))
    return Thing("context", call.node, call, inner=Lib("device"))


@of("torch.device")
def _device(s: Library, call: Call, name: str) -> Value:
    kind, index = call.get("device", 0), call.get("index", 1)
    device = Value(key=("device", *(argument.key for argument in call.args)))
    device.mark(device=kind, index=index)
    device.node = call.node
    s.see("device", call, device)
    return device


@family("dist.")
def _collective(s: Library, call: Call, name: str) -> Value | None:
    last = name.rpartition(".")[2]
    if last in COLLECTIVES:
        return s.meet(last, COLLECTIVES[last], call)
    if last in ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group"):
        return s.make_group(last, call)
    if last in (
        "send",
        "recv",
        "isend",
        "irecv",
        "send_object_list",
        "recv_object_list",
        "P2POp",
        "batch_isend_irecv",
    ):
        return s.message(last, call)
    if last.endswith("Store"):
        return Thing("store", call.node, call)
    return None


@family("results.")
def _collective_with_result(s: Library, call: Call, name: str) -> Value | None:
    last = name.rpartition(".")[2]
    if last not in COLLECTIVES and last not in RESULTS:
        return None
    group = call.get("group", 2)
    world = group is None or (isinstance(group, Lib) and group.name.endswith("WORLD"))
    result = s.mixed(call.args[:1])
    s.see(last, call, call.get("tensor", 0), meets=last if world else "")
    if last in RESULTS:
        result.vary &= ~(DIFFERS | MEASURED | UNKNOWN)
    return result


@family("dcp.")
def _checkpoint(s: Library, call: Call, name: str) -> Value | None:
    last = name.rpartition(".")[2]
    if last not in CHECKPOINTING:
        return None
    alone = plain(call.get("no_dist")) is True or s.is_part(call.get("process_group"))
    s.see(last, call, call.get("state_dict", 0), meets="" if alone else last)
    if last.startswith("get_"):
        return Thing("full state", call.node, call, inner=call.get("model", 0))
    return Value(vary=SAVED if last == "load" else 0)


@of("tensor.parallelize_module parallelize_module")
def _parallelize(s: Library, call: Call, name: str) -> Value:
    model = call.get("module", 0) or Value()
    s.see("parallelize_module", call, model)
    return model


@of("mp.spawn mp.start_processes torch_xla.distributed.xla_multiprocessing.spawn")
def _spawn(s: Library, call: Call, name: str) -> Value:
    given = call.get("args", 1)
    arguments = list(given.items) if isinstance(given, Items) else []
    function, number = call.get("fn", 0), call.get("nprocs", 2)
    if number is not None:
        s.spawned.append(number)
    if function is not None:
        s.launch(function, arguments, call, index=True)
    return Value()


@of("mp.Process multiprocessing.Process multiprocessing.context.Process")
def _process(s: Library, call: Call, name: str) -> Value:
    target = call.get("target", 1)
    given = call.get("args", 3)
    arguments = list(given.items) if isinstance(given, Items) else []
    if isinstance(target, Function) or things(target, "partial"):
        s.launch(target, arguments, call)  # type: ignore[arg-type]
    return Thing("object", call.node, call)


@of("notebook_launcher accelerate.notebook_launcher")
def _notebook(s: Library, call: Call, name: str) -> Value:
    given = call.get("args", 1)
    function = call.get("function", 0)
    return (
        s.launch(function, list(given.items) if isinstance(given, Items) else [], call)
        if function
        else Value()
    )


@of("fire.Fire typer.run jsonargparse.CLI jsonargparse.auto_cli absl.app.run click.command")
def _command_line(s: Library, call: Call, name: str) -> Value:
    function = call.args[0] if call.args else None
    if isinstance(function, Function):
        return s.launch(function, [], call, launched=False)
    for value in inside(function) if function is not None else ():
        if isinstance(value, Function):
            s.launch(value, [], call, launched=False)
    return Value()


@of("sys.exit os._exit builtins.exit builtins.quit")
def _exit(s: Library, call: Call, name: str) -> Value:
    code = call.get("status", 0)
    failed = code is not None and (not isinstance(code, Const) or code.data not in (0, None))
    s.see("process ends", call)
    s.exits.append(Exit("raise" if failed else "exit", tuple(s.guards), call.node, s.frame))
    return Value()


# --- models ---


@of("DistributedDataParallel FullyShardedDataParallel DDP FSDP ShardedDataParallel")
def _wrap(s: Library, call: Call, name: str) -> Value:
    sharded = name.rpartition(".")[2] in ("FullyShardedDataParallel", "FSDP")
    return s.wrap(Thing("fsdp" if sharded else "ddp", call.node, call), call)


@of("fully_shard replicate")
def _shard(s: Library, call: Call, name: str) -> Value:
    model = call.get("module", 0) or Value()
    part = s.is_part_mesh(call.get("mesh"))
    for module in each(model):
        module.mark(**{"sharded" if name == "fully_shard" else "replicated": "part" if part else "world"})
    s.see(name, call, model)
    s.together.append(model)
    return model


@family("nn.")
def _layer(s: Library, call: Call, name: str) -> Value | None:
    last = name.rpartition(".")[2]
    if last[:1].isupper():
        made = Thing("module", call.node, call, inner=Lib(name))
        parts = [part for given in call.given() for part in inside(given)]
        if (
            last.startswith("BatchNorm")
            or last == "SyncBatchNorm"
            or any(part.note("norm") for part in parts)
        ):
            made.mark(norm=True)
            s.norms += 1
        if "Dropout" in last and plain(call.get("p", 0)) != 0:
            s.see("draw", call)
        if last in ("Parameter", "Buffer"):
            made.kind = "parameter"
        if "Loss" in last:
            made.kind = "loss"
        return made
    if last in ("convert_sync_batchnorm",):
        return _convert(s, call, name)
    return None


@of("convert_sync_batchnorm convert_syncbn_model")
def _convert(s: Library, call: Call, name: str) -> Value:
    model = call.get("module", 0) or Value()
    s.see("convert_sync_batchnorm", call, model)
    return model


@family("torchvision.models")
def _known_model(s: Library, call: Call, name: str) -> Value | None:
    last = name.rpartition(".")[2]
    if last.startswith("get_model") or last[:1].islower():
        made = Thing("module", call.node, call, inner=Lib(name))
        text = last if last != "get_model" else str(plain(call.get("name", 0)))
        if text.startswith(NORMS_IN) or text.endswith("_bn"):
            made.mark(norm=True)
            s.norms += 1
        return made
    return None


@family("torchvision.transforms")
def _transform(s: Library, call: Call, name: str) -> Value | None:
    if "Random" in name or "Jitter" in name or "Aug" in name:
        s.see("draw", call, result=Value(name="worker"))
    return Thing("object", call.node, call)


@family("F.")
def _functional(s: Library, call: Call, name: str) -> Value | None:
    if name[2:] in LOSS_FUNCTIONS:
        s.see("loss", call, call.get("input", 0))
    return None


LOSS_FUNCTIONS = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "kl_div",
)


@family("optim.")
def _optimizer(s: Library, call: Call, name: str) -> Value | None:
    last = name.rpartition(".")[2]
    if not last[:1].isupper():
        return None
    if last == "ZeroRedundancyOptimizer":
        made = Thing("optimizer", call.node, call, inner=Lib(name))
    else:
        made = Thing("optimizer", call.node, call)
    s.see("optimizer", call, made)
    return made


@family("scheduler.")
def _scheduler(s: Library, call: Call, name: str) -> Value | None:
    last = name.rpartition(".")[2]
    made = Thing("plateau" if last == "ReduceLROnPlateau" else "scheduler", call.node, call)
    s.see("scheduler", call, made)
    return made


@of("torch.set_grad_enabled set_grad_enabled")
def _set_grad(s: Library, call: Call, name: str) -> Value:
    off = plain(call.get("mode", 0)) is False
    return Thing("context", call.node, call, inner=Lib("no_grad" if off else "set_grad_enabled"))


@of("torch.checkpoint")
def _activation_checkpoint(s: Library, call: Call, name: str) -> Value:
    function = call.get("function", 0)
    return s.call_value(function, Call(call.node, call.args[1:])) if function else Value()


@of("torch.load safetensors.torch.load_file")
def _load(s: Library, call: Call, name: str) -> Value:
    path = call.get("f", 0)
    loaded = Value(vary=SAVED | (path.vary & DIFFERS if path else 0), node=call.node)
    s.see("load file" if name == "torch.load" else "load safetensors", call, path, result=loaded)
    return loaded


# --- data ---


@of("DataLoader StatefulDataLoader torchdata.stateful_dataloader.StatefulDataLoader")
def _loader(s: Library, call: Call, name: str) -> Value:
    made = Thing("loader", call.node, call)
    s.see("DataLoader", call, made)
    start = call.get("worker_init_fn")
    if isinstance(start, Function) or things(start, "partial"):  # it seeds the workers, not this process
        seeds, number = dict(s.seeds), len(s.events)
        s.call_value(start, Call(call.node, [Value(name="worker")]))
        made.mark(seeds=[event for event in s.events[number:] if event.name == "seed"])
        s.seeds = seeds
    return made


@of("RandomSampler SequentialSampler WeightedRandomSampler SubsetRandomSampler BatchSampler")
def _other_sampler(s: Library, call: Call, name: str) -> Value:
    inner = call.get("sampler", 0)
    if name.endswith("BatchSampler") and things(inner, "sampler"):
        return things(inner, "sampler")[0]
    return Thing(
        "other sampler", call.node, call, inner=inner, vary=join(call.given()) & (DIFFERS | UNKNOWN | UNEVEN)
    )


@of("Subset")
def _subset(s: Library, call: Call, name: str) -> Value:
    given, chosen = call.get("dataset", 0), call.get("indices", 1)
    vary = join(call.given())
    if chosen is not None and not chosen.vary & UNEVEN:
        vary &= ~UNEVEN
    return Thing("subset", call.node, call, inner=given, vary=vary)


@of("random_split")
def _random_split(s: Library, call: Call, name: str) -> Value:
    generator = call.get("generator", 2)
    alike = s.seeds.get("torch") == "same"
    if generator is not None and not is_none(generator):
        alike = not generator.vary & DIFFERS
    s.see("random_split", call, generator, result=Value(name="" if alike else s.seeds.get("torch", "none")))
    parts = call.get("lengths", 1)
    number = len(parts.items) if isinstance(parts, Items) else 3
    return Items([Thing("dataset", call.node, call) for _ in range(number)], not isinstance(parts, Items))


@family("torchvision.datasets")
def _vision(s: Library, call: Call, name: str) -> Value | None:
    made = Thing("dataset", call.node, call, inner=Lib(name))
    s.see("dataset", call, made)
    return made


@of("numpy.random.default_rng numpy.random.RandomState random.Random numpy.random.Generator")
def _own_generator(s: Library, call: Call, name: str) -> Value:
    given = call.args[0] if call.args else call.keywords.get("seed")
    vary = OWN if given is None or is_none(given) else given.vary & (DIFFERS | UNKNOWN)
    return Thing("generator", call.node, call, vary=vary)


@of("torch.manual_seed cuda.manual_seed cuda.manual_seed_all torch.seed torch.random.manual_seed")
def _seed_torch(s: Library, call: Call, name: str) -> Value:
    if name == "torch.manual_seed" or s.seeds.get("torch") is None:
        s.seed("torch", call.get("seed", 0), call)
    return Thing("generator", call.node, call)


@of("numpy.random.seed random.seed")
def _seed_other(s: Library, call: Call, name: str) -> Value:
    s.seed(name.partition(".")[0], call.args[0] if call.args else None, call)
    return Const(None)


@of("set_seed seed_everything fix_seed")
def _seed_all(s: Library, call: Call, name: str) -> Value:
    s.seed(
        "all",
        call.args[0] if call.args else call.keywords.get("seed"),
        call,
        plain(call.get("device_specific")) is True,
    )
    return Const(None)


@family("random.")
def _python_random(s: Library, call: Call, name: str) -> Value | None:
    return _draw(s, call, name, "random")


@family("numpy.random.")
def _numpy_random(s: Library, call: Call, name: str) -> Value | None:
    return _draw(s, call, name, "numpy")


@family("torch.")
def _torch(s: Library, call: Call, name: str) -> Value | None:
    last = name.rpartition(".")[2]
    if last in RANDOM:
        return _draw(s, call, name, "torch")
    if last in ("tensor", "full", "zeros", "ones", "zeros_like", "empty", "stack", "cat"):
        result = s.mixed(call.given())
        if last.startswith(("zeros", "ones", "empty")):
            result.vary, result.src = 0, frozenset()
        return result
    return None


def _draw(s: Library, call: Call, name: str, library: str) -> Value | None:
    last = name.rpartition(".")[2]
    if last not in RANDOM:
        return None
    number = s.drawn(library, call, last)
    if name in IN_PLACE:
        for sequence in call.args[:1]:
            sequence.vary |= number.vary & OWN
            sequence.mark(drawn=True)
        return Const(None)
    return number


# --- builtins ---


@of("builtins.len")
def _len(s: Library, call: Call, name: str) -> Value:
    given = call.args[0] if call.args else Value()
    if isinstance(given, Items) and not given.more:
        return Const(len(given.items))
    length = Value(vary=given.vary & (UNKNOWN | UNEVEN | EVEN), key=("len", given.key), name="len")
    if given.vary & UNEVEN:
        length.vary |= OWN | UNEVEN
    elif given.vary & OWN and not isinstance(given, Items | Pairs):
        length.vary |= SHAPE
    return length


@of("builtins.int builtins.float builtins.bool builtins.abs builtins.round")
def _number(s: Library, call: Call, name: str) -> Value:
    if not call.args:
        return Const(0)
    given = call.args[0]
    s.use(given, call.node)
    if isinstance(given, Const) and isinstance(given.data, int | float | str):
        try:
            return Const(getattr(builtins, name[9:])(given.data))
        except (ValueError, TypeError, OverflowError):
            return Value()
    if name == "builtins.bool":
        return s.tested(s.truth(given), [given])
    return given


@of(
    "builtins.str builtins.repr os.fspath pathlib.Path os.path.join os.path.abspath os.path.expanduser "
    "os.path.realpath"
)
def _text(s: Library, call: Call, name: str) -> Value:
    if len(call.args) == 1 and not isinstance(call.args[0], Items):
        given = call.args[0]
        if name == "pathlib.Path":
            given.mark(path=True)
        return given
    if name in ("os.path.join", "pathlib.Path"):
        return s.joined_path(call.args) if call.args else Const("")
    return s.mixed(call.given())


@of("builtins.range")
def _range(s: Library, call: Call, name: str) -> Value:
    made = Thing("range", call.node, call, vary=join(call.args) & (DIFFERS | UNKNOWN | EVEN | SAVED))
    made.key = ("range", *(argument.key for argument in call.args))
    if (
        len(call.args) == 3
        and role(call.args[0]) in ("rank", "index", "local rank")
        and role(call.args[2]) == "world"
    ):
        made.kind = "subset"
        made.vary = RANK | (0 if call.args[1].vary & EVEN else UNEVEN)
    return made


@of(
    "builtins.list builtins.tuple builtins.iter builtins.sorted builtins.reversed builtins.set "
    "itertools.islice itertools.cycle"
)
def _as_list(s: Library, call: Call, name: str) -> Value:
    if not call.args:
        return Items([])
    given = call.args[0]
    if name == "builtins.iter" or name == "itertools.cycle":
        return Thing(
            "iter", call.node, call, inner=given, vary=given.vary & ~UNEVEN if "cycle" in name else given.vary
        )
    if name == "itertools.islice":
        return Thing("iter", call.node, call, inner=given, vary=given.vary & ~UNEVEN)
    if isinstance(given, Items) and name in ("builtins.list", "builtins.tuple"):
        return Items(list(given.items), given.more, given.vary)
    return given


@of("builtins.isinstance")
def _isinstance(s: Library, call: Call, name: str) -> Value:
    if len(call.args) == 2:
        test = s.is_of(call.args[0], call.args[1])
        return Const(test) if isinstance(test, bool) else s.tested(test, [])
    return Value()


@of("builtins.hasattr")
def _hasattr(s: Library, call: Call, name: str) -> Value:
    given, wanted = (call.args + [Value(), Value()])[:2]
    if plain(wanted) == "module":
        known = [
            isinstance(value, Thing)
            and value.kind in ("ddp", "dp", "fsdp", "module")
            or value.note("wrapper")
            for value in each(given)
        ]
        if all(known):
            ways = given.choices if isinstance(given, Choice) else [(True, given)]
            test = either(*(way for way, value in ways if things(value, "ddp", "dp", "fsdp")))
            return Const(test) if isinstance(test, bool) else s.tested(test, [])
    return Value(key=("hasattr", given.key, wanted.key))


@of("builtins.getattr")
def _getattr(s: Library, call: Call, name: str) -> Value:
    wanted = plain(call.get("name", 1))
    if isinstance(wanted, str) and call.args:
        return s.attribute(call.args[0], wanted)
    return Value()


@of("builtins.setattr")
def _setattr(s: Library, call: Call, name: str) -> Value:
    wanted = plain(call.get("name", 1))
    if isinstance(wanted, str) and len(call.args) == 3:
        for target in each(call.args[0]):
            if isinstance(target, Thing | Value) and not isinstance(target, Const | Lib):
                s.store(target.own(), wanted, call.args[2])
    return Const(None)


@of("builtins.dict")
def _dict(s: Library, call: Call, name: str) -> Value:
    first = call.args[0] if call.args else None
    items: dict[object, Value] = dict(first.items) if isinstance(first, Pairs) else {}
    if call.args and not isinstance(first, Pairs):
        items[...] = s.mixed(call.args)
    items.update(call.keywords)
    return Pairs(items)


@of("builtins.max builtins.min builtins.sum")
def _most(s: Library, call: Call, name: str) -> Value:
    numbers = [plain(argument) for argument in call.args]
    if len(numbers) > 1 and all(isinstance(number, int | float) for number in numbers):
        return Const(
            max(numbers) if name.endswith("max") else min(numbers) if name.endswith("min") else numbers[0]
        )
    known = [argument for argument in call.args if role(argument)]
    if len(known) == 1 and name.endswith("max") and len(call.args) == 2:
        return known[0]
    return s.mixed(
        [
            part
            for value in call.given()
            for part in ([value] if not isinstance(value, Items) else value.items)
        ]
    )


@of("wandb.init SummaryWriter tensorboardX.SummaryWriter tqdm.tqdm tqdm.auto.tqdm tqdm.trange")
def _show(s: Library, call: Call, name: str) -> Value:
    s.see("show", call, result=Value(name=name.rpartition(".")[2]))
    if "tqdm" in name and call.args:
        return call.args[0]
    return Thing("writer", call.node, call)


@of("builtins.map builtins.filter")
def _map(s: Library, call: Call, name: str) -> Value:
    if len(call.args) == 2 and isinstance(call.args[0], Function | Class | Lib):
        item = s.item_of(call.args[1], call.node)
        result = s.call_value(call.args[0], Call(call.node, [item])) if name.endswith("map") else item
        made = Thing("iterator", call.node, vary=result.vary)
        made.mark(item=result)
        return made
    return s.mixed(call.given())


@of("copy.deepcopy copy.copy")
def _copy(s: Library, call: Call, name: str) -> Value:
    given = call.args[0] if call.args else Value()
    for original in things(given, "module", "ddp", "fsdp", "instance"):
        made = Thing(
            "module" if original.kind != "instance" else "instance",
            call.node,
            original.call,
            made=original.made,
        )
        made.attrs = dict(original.own())
        made.mark(norm=original.note("norm"))
        return made
    if isinstance(given, Pairs):
        return Pairs(dict(given.items))
    return s.mixed([given])


# --- frameworks ---


@of("deepspeed.initialize")
def _deepspeed(s: Library, call: Call, name: str) -> Value:
    s.joined = True
    s.see("deepspeed", call)
    engine = Thing("engine", call.node, call, inner=call.get("model", 1))
    return Items([engine, Thing("engine", call.node, call), Thing("engine loader", call.node, call), Value()])
