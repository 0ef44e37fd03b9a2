import pytest

from hotseat.loadgen.measure import Distribution, RequestResult, percentile, summarize
from hotseat.loadgen.stream import ChunkReader, EventSplitter


def result(sent_at: float, *chunk_times: float, tokens: int | None = None, **fields: object) -> RequestResult:
    return RequestResult(
        index=0,
        sent_at=sent_at,
        chunk_times=list(chunk_times),
        num_output_tokens=len(chunk_times) if tokens is None else tokens,
        num_prompt_tokens=10,
        **fields,
    )


def test_formulas_of_one_request() -> None:
    one = result(1.0, 1.5, 1.75, 2.5)
    assert one.ttft_s == 0.5
    assert one.latency_s == 1.5
    assert one.gaps_s == [0.25, 0.75]
    assert one.tpot_s == (1.5 - 0.5) / (3 - 1)


def test_tpot_divides_by_the_servers_tokens_not_by_the_chunks() -> None:
    assert result(0.0, 1.0, 3.0, tokens=5).tpot_s == (3.0 - 1.0) / 4


def test_one_token_has_no_tpot_and_no_gap() -> None:
    one = result(0.0, 1.0)
    assert one.tpot_s is None
    assert one.gaps_s == []


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.5), (0.9, 3.7), (0.99, 3.97), (1.0, 4.0)])
def test_percentiles_interpolate(share: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], share) == pytest.approx(expected)


def test_percentiles_equal_numpys() -> None:
    numpy = pytest.importorskip("numpy")
    values = sorted(numpy.random.default_rng(0).exponential(size=101).tolist())
    for share in (0.01, 0.5, 0.9, 0.99):
        assert percentile(values, share) == pytest.approx(float(numpy.percentile(values, 100 * share)))


def test_summary_adds_up() -> None:
    summary = summarize([result(0.0, 1.0, 2.0), result(0.0, 1.0, 2.0, 4.0)], duration_s=4.0)
    assert summary.num_output_tokens == 5
    assert summary.output_throughput == 1.25
    assert summary.total_throughput == (5 + 20) / 4
    assert summary.request_throughput == 0.5
    assert summary.mean_output_tokens == 2.5
    assert summary.ttft.mean_ms == 1000
    assert summary.itl.max_ms == 2000
    assert summary.itl.mean_ms == pytest.approx(1e3 * (1 + 1 + 2) / 3, abs=1e-3)
    assert summary.e2e.p50_ms == 3000


def test_failed_requests_count_in_no_average() -> None:
    bad = result(0.0, 100.0, tokens=1000, error="lost")
    summary = summarize([result(0.0, 1.0, 2.0), bad, bad], duration_s=2.0)
    assert (summary.completed, summary.failed, summary.errors) == (1, 2, {"lost": 2})
    assert summary.output_throughput == 1.0
    assert summary.ttft.max_ms == 1000


def test_a_run_in_which_all_failed_has_a_summary() -> None:
    summary = summarize([RequestResult(index=0, error="lost")], duration_s=0.0)
    assert summary.output_throughput == 0
    assert summary.ttft == Distribution(mean_ms=None, p50_ms=None, p90_ms=None, p99_ms=None, max_ms=None)


def test_peak_concurrency_counts_overlaps_only() -> None:
    touching = [result(0.0, 1.0), result(1.0, 2.0), result(1.5, 3.0)]
    assert summarize(touching, duration_s=3.0).peak_concurrency == 2


@pytest.mark.parametrize("cut", range(1, 30))
def test_events_are_the_same_wherever_the_stream_is_cut(cut: int) -> None:
    stream = b": ping\n\ndata: one\r\n\r\nevent: x\ndata:two\n\n"
    splitter = EventSplitter()
    assert [*splitter.feed(stream[:cut]), *splitter.feed(stream[cut:])] == [b"one", b"two"]


def test_a_stream_that_ends_early_is_an_error() -> None:
    reader = ChunkReader(RequestResult(index=0))
    reader.feed(b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n', 1.0)
    reader.finish()
    assert reader.result.error == "the stream ended before its end"


def test_text_that_is_no_json_is_an_error() -> None:
    reader = ChunkReader(RequestResult(index=0))
    reader.feed(b"data: oops\n\n", 1.0)
    reader.finish()
    assert "not a completion chunk" in str(reader.result.error)


def test_reasoning_is_output_too() -> None:
    reader = ChunkReader(RequestResult(index=0))
    reader.feed(b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\ndata: [DONE]\n\n', 2.0)
    reader.finish()
    assert reader.result.error is None
    assert reader.result.chunk_times == [2.0]
