"""What every device does, as one suite: a subclass says which device, and how to break a kernel for it."""

from dataclasses import replace

import pytest
from fixtures.fake_device import TOY

from tuner.declare import catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered, render
from tuner.declare.space import Space
from tuner.devices.protocol import Binary, Compiler, Device, LaunchFailed, Run
from tuner.results.measurement import Outcome
from tuner.workers.bench import Bench, CompiledConfig
from tuner.workers.workload import Workload

N = 5000


class DeviceContract:
    """A subclass gives `open`, `compiler` and `failing_source`; its name starts with Test."""

    #: Regimes that the device is timed in.
    regimes: tuple[str, ...] = ("cold", "hot")
    #: Samples: one, and more than fit into a queue.
    counts = (1, 150)

    @classmethod
    def open(cls) -> Device:
        """The device."""
        raise NotImplementedError

    @classmethod
    def compiler(cls) -> Compiler:
        """What compiles for it."""
        raise NotImplementedError

    @classmethod
    def failing(cls, rendered: Rendered) -> Rendered:
        """The kernel changed so that it compiles, but fails when it is loaded or run; the device stays well."""
        raise NotImplementedError

    @classmethod
    def cheating(cls, rendered: Rendered, how: str) -> Rendered:
        """The kernel changed so that it is right when it runs first.

        Args:
            rendered: The toy.
            how: ``writes_input`` (one element of it, each time), or ``stale`` (what it computed first, again).
        """
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Device:
        """Opened once for a class."""
        return cls.open()

    @pytest.fixture
    def rendered(self, device: Device) -> Rendered:
        """The toy, rendered for the device with the first legal config."""
        declared = catalogue.from_file(TOY)
        problem = declared.operation("toy").problem({"n": N})
        kernel = declared.of("toy", device.info.kind)[0]
        space = Space.build(kernel.parameters, kernel.constraints, problem, device.info)
        return render(kernel, problem, space[0])

    @pytest.fixture
    def workload(self, device: Device) -> Workload:
        """Fresh arrays of the toy."""
        return Workload(device, catalogue.from_file(TOY).operation("toy").problem({"n": N}), seed=1)

    @pytest.fixture
    def run(self, device: Device, rendered: Rendered, workload: Workload) -> Run:
        """The toy, loaded and run once."""
        run = device.load(rendered, self.compiled(device, rendered, workload).code, workload)
        run()
        device.synchronize()
        return run

    def compiled(self, device: Device, rendered: Rendered, workload: Workload) -> Binary:
        """Machine code for the device."""
        return self.compiler().compile(rendered, device.info.architecture, workload.problem)

    def test_it_says_what_it_is(self, device: Device) -> None:
        assert device.info.kind in ("cuda", "cpu")
        assert device.info.name
        assert device.info.uuid
        assert 0 < device.free_bytes() <= device.info.memory_bytes
        assert DeviceInfo.from_json(device.info.to_json()) == device.info
        assert all(isinstance(text, str) and text for text in device.versions.values())
        assert "compiler" in device.versions

    def test_a_loaded_kernel_is_right_each_time(self, device: Device, run: Run, workload: Workload) -> None:
        for _ in range(2):
            workload.poison()
            assert "unwritten" in workload.check()[1]
            run()
            device.synchronize()
            assert workload.check()[1] == ""

    def test_samples_are_as_many_and_above_zero(self, device: Device, run: Run, workload: Workload) -> None:
        for regime in self.regimes:
            for count in self.counts:
                samples = device.samples_s(run, count, regime)
                assert len(samples) == count
                assert all(0 < sample < 60 for sample in samples)
            assert workload.check()[1] == ""
        assert all(isinstance(value, float) for value in dict(device.circumstances(run)).values())
        power_w = device.power_w(run)
        assert power_w is None or 0 < power_w < 5000

    def test_a_sample_runs_on_what_came_before(self, device: Device, run: Run, workload: Workload) -> None:
        for regime in self.regimes:
            for draw in (workload.second, workload.first):
                begun: list[None] = []
                before = lambda draw=draw, begun=begun: begun.append(workload.begin(draw))
                device.samples_s(run, 1, regime, before)
                assert workload.check()[1] == ""
                assert begun

    @pytest.mark.parametrize("how", ["writes_input", "stale"])
    def test_a_kernel_that_cheats_is_wrong_and_the_next_one_is_not(
        self, device: Device, rendered: Rendered, workload: Workload, how: str
    ) -> None:
        cheating = self.cheating(rendered, how)
        for regime in self.regimes:
            bench, found = Bench(device, workload, regime), []
            for each in (rendered, cheating, rendered):
                binary = self.compiled(device, each, workload)
                found.append(bench.measure(CompiledConfig(each, binary.code, binary.report), None))
            assert [each.outcome.value for each in found] == ["MEASURED", "WRONG_RESULT", "MEASURED"]
            assert {"writes_input": "wrote into the input x", "stale": "stale"}[how] in found[1].reason
            assert not bench.unwell

    def test_the_library_gives_the_right_answer(self, device: Device, workload: Workload) -> None:
        run = device.library(workload)
        run()
        device.synchronize()
        assert workload.check()[1] == ""
        assert len(device.samples_s(run, 3, "cold")) == 3

    def test_library_errors_limit_ours(self, device: Device, rendered: Rendered, workload: Workload) -> None:
        bench = Bench(device, workload, "hot")
        bench.limit_error(1.0)
        library = bench.measure_baseline()
        assert bench.limit.library_rms == library.error.rms_rel > 0
        binary = self.compiled(device, rendered, workload)
        found = bench.measure(CompiledConfig(rendered, binary.code, binary.report), None)
        exact = found.error.rms_rel <= library.error.rms_rel
        assert found.outcome is (Outcome.MEASURED if exact else Outcome.INACCURATE)
        assert found.circumstances["library_rms_rel"] == library.error.rms_rel

    def test_no_library_where_none_is_declared(self, device: Device) -> None:
        bare = replace(catalogue.from_file(TOY).operation("toy"), baselines={})
        assert device.library(Workload(device, bare.problem({"n": 10}), 1)) is None

    def test_a_device_survives_failures(self, device: Device, rendered: Rendered, workload: Workload) -> None:
        broken = self.failing(rendered)
        code = self.compiled(device, broken, workload).code
        with pytest.raises(LaunchFailed, match=r".+"):
            self.load_and_run(device, broken, code, workload)
        device.canary()

    def load_and_run(self, device: Device, rendered: Rendered, code: bytes, workload: Workload) -> None:
        """All that a verification does with a kernel."""
        device.load(rendered, code, workload)()
        device.synchronize()
