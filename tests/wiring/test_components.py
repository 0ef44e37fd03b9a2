"""From options to objects, with a tiny model on disk."""

import builtins
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hotseat.core.config import SchedulerConfig
from hotseat.core.policies import BUILT_IN
from hotseat.errors import ConfigError, ModelNotFoundError
from hotseat.runner.config import kv_bytes_per_block
from hotseat.runner.reference import ReferenceRunner
from hotseat.wiring import ENGINE_OPTIONS, EngineArgs, EngineComponents, ModelOptions, fetch, make_components
from tiny_models import write_tiny_gguf_model, write_tiny_hf_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_hf_model(tmp_path_factory.mktemp("model") / "tiny"))


def components_of(model: str, **values: object) -> EngineComponents:
    return make_components(EngineArgs.from_values({"model": model, "runner": "reference", "max_num_seqs": 4} | values))


def test_scheduler_and_runner_agree_on_their_limits(model: str) -> None:
    components = components_of(model, num_kv_blocks=50, max_model_len="300", block_size=8, max_num_batched_tokens=64)
    for config in (components.scheduler_config, components.runner_config):
        assert config.num_kv_blocks == 50
        assert config.max_model_len == 300
        assert config.block_size == 8
        assert config.max_num_seqs == 4
        assert config.max_num_batched_tokens == 64


def test_the_cache_has_the_size_that_was_asked_for(model: str) -> None:
    components = components_of(model, kv_cache_memory_bytes="1MiB")
    block_bytes = kv_bytes_per_block(components.model.spec, components.runner_config.kv_dtype, 16)
    assert components.runner_config.num_kv_blocks == 2**20 // block_bytes


def test_without_a_size_the_cache_is_what_all_seats_need(model: str) -> None:
    components = components_of(model)
    assert components.scheduler_config.max_model_len == components.model.spec.max_position_embeddings == 512
    assert components.scheduler_config.num_kv_blocks == 4 * 512 // 16


def test_the_token_budget_grows_with_the_seats_unless_it_was_chosen(model: str) -> None:
    assert components_of(model, max_num_seqs=1000, num_kv_blocks=40).scheduler_config.max_num_batched_tokens == 1000
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        components_of(model, max_num_seqs=1000, num_kv_blocks=40, max_num_batched_tokens=512)


def test_options_reach_their_rooms(model: str) -> None:
    components = components_of(model, dtype="fp32", enable_prefix_caching=False, stall_timeout_s=5)
    assert components.runner_config.dtype == "fp32"
    assert components.scheduler_config.enable_prefix_caching is False
    assert components.args.engine.stall_timeout_s == 5.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_num_seq": 1}, "unknown option max_num_seq for LLM; did you mean max_num_seqs"),
        ({"dtype": "int4"}, "dtype must be one of"),
        ({"runner": "cuda"}, "runner must be"),
        ({"generation_config": "none"}, "generation_config must be"),
        ({"num_kv_blocks": 0}, "num_kv_blocks must be at least 1"),
        ({"max_model_len": 5000}, "made for at most 512"),
        ({"kv_cache_memory_bytes": "much"}, "kv_cache_memory_bytes must be a size"),
        ({"block_size": 0}, "block_size"),
        ({"scheduling_policy": "lottery"}, "scheduling_policy"),
        ({"scheduling_policy": "no_such_module:Lottery"}, "cannot be used"),
        ({"scheduling_policy": "fractions:Fraction"}, "'fractions:Fraction' has no method of a policy"),
        ({"chat_template": "/no/such/file"}, "chat_template"),
    ],
)
def test_a_wrong_option_is_named(model: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_components(EngineArgs.from_values({"model": model, "runner": "reference"} | values, "for LLM"))


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"none\.gguf"):
        components_of(str(tmp_path / "none.gguf"), offline=True)


def test_fetching_a_model_on_disk_returns_its_place(tmp_path: Path) -> None:
    path = write_tiny_gguf_model(tmp_path / "tiny.gguf")
    assert fetch(ModelOptions(model=str(path))) == path


def test_the_models_own_defaults_are_used_unless_neutral_ones_are_asked_for(model: str) -> None:
    own = components_of(model).model.generation_config
    named = {"temperature": own.temperature, "top_p": own.top_p, "top_k": own.top_k}
    expected = {name: value for name, value in named.items() if value is not None}
    assert components_of(model).sampling_defaults == expected
    assert components_of(model, generation_config="vllm").sampling_defaults == {}


def test_a_chat_template_can_be_replaced(model: str, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("<{{ messages[0].content }}>")
    messages = [{"role": "user", "content": "hi"}]
    for chosen in (str(path), "<{{ messages[0].content }}>"):
        assert components_of(model, chat_template=chosen).chat_template.render(messages) == "<hi>"


def test_control_tokens_in_messages_stay_text_when_it_is_asked_for(model: str) -> None:
    for plain in (True, False):
        components = components_of(model, chat_template="{{ messages[0].content }}", plain_message_contents=plain)
        tokenizer = components.tokenizer
        token = tokenizer.control_tokens[0]
        prompt = components.chat_template.render([{"role": "user", "content": f"a{token}b"}])
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        assert any(map(tokenizer.is_special, ids)) != plain
        assert tokenizer.decode(ids, skip_special_tokens=False) == f"a{token}b"


class Lifo:
    """Last come, first served."""

    def key(self, request, now):
        return (-request.arrived_at,)

    def may_preempt(self, waiting, running):
        return False


def test_a_policy_of_the_users_own_is_imported(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_policies")
    module.Lifo = Lifo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_policies", module)
    policy = components_of(model, scheduling_policy="my_policies:Lifo").scheduler.policy
    assert policy.key(SimpleNamespace(arrived_at=3.0), 5.0) == (-3.0,)


def test_every_built_in_policy_can_be_chosen_and_is_named_in_the_help(model: str) -> None:
    for name, policy in BUILT_IN.items():
        chosen = components_of(model, scheduling_policy=name).scheduler.policy
        assert type(chosen) is type(policy(SchedulerConfig(max_model_len=8, num_kv_blocks=1)))
        assert name in ENGINE_OPTIONS["scheduling_policy"].help


@pytest.mark.parametrize("runner", ["auto", "reference"])
def test_a_model_without_groups_can_be_computed_in_gguf_mode(
    model: str, runner: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        components_of(model, dtype="gguf", runner=runner).runner.close()
    lines = [record.getMessage() for record in caplog.records if "dtype gguf" in record.getMessage()]
    assert lines == [
        "dtype gguf: 15 of 15 matrices are F32 in the file and were rounded to Q8_0, 8-bit codes in groups of 32"
    ]


@pytest.fixture
def without_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this Python one in which the extension was never built."""
    for name in ("hotseat.runner.native", "hotseat.runner._native"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    true_import = builtins.__import__

    def import_without(name: str, *rest: Any, **named: Any) -> Any:
        fromlist = rest[2] if len(rest) > 2 else named.get("fromlist")
        if name.endswith("_native") or "_native" in (fromlist or ()):
            raise ImportError("No module named 'hotseat.runner._native'")
        return true_import(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", import_without)


@pytest.mark.usefixtures("without_extension")
def test_without_the_extension_numpy_computes_and_one_warning_says_so(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        components = components_of(model, runner="auto")
    assert isinstance(components.runner, ReferenceRunner)
    (record,) = caplog.records
    assert "NumPy" in record.getMessage()
    assert "make native" in record.getMessage()


@pytest.mark.usefixtures("without_extension")
def test_without_the_extension_the_native_runner_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="extension cannot be loaded"):
        components_of(model, runner="native")


def test_with_the_extension_the_native_runner_computes(model: str) -> None:
    native = pytest.importorskip("hotseat.runner.native", exc_type=ImportError)
    components = components_of(model, runner="auto")
    try:
        assert isinstance(components.runner, native.NativeRunner)
    finally:
        components.runner.close()


def test_shared_options_have_one_default() -> None:
    """A field that scheduler and runner both have must mean the same in both."""
    from hotseat import options
    from hotseat.core.config import SchedulerConfig
    from hotseat.runner.config import RunnerConfig

    runner = options.collect(("runner", RunnerConfig))
    scheduler = options.collect(("scheduler", SchedulerConfig))
    shared = runner.keys() & scheduler.keys()
    assert {"block_size", "max_num_seqs", "max_num_batched_tokens"} <= shared
    for name in shared:
        assert runner[name].default == scheduler[name].default
        assert name in ENGINE_OPTIONS


def test_steps_are_measured_before_the_first_request_when_there_is_a_latency_target(model: str) -> None:
    options = {"num_kv_blocks": 50, "max_model_len": "300"}
    with_target, without = components_of(model, target_itl_ms=50, **options), components_of(model, **options)
    for components in (with_target, without):
        components.make_step_loop().close()
    assert with_target.scheduler.stats().num_steps > 4
    assert without.scheduler.stats().num_steps == 0
