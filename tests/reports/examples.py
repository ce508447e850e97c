"""Reports made by hand: a launch-bound, a memory-bound, a healthy and a hostile one."""

from __future__ import annotations

import msgspec

from advisor.engine.analysis import Analysis
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Evidence, Failed, Finding, Fix, Saving, Skipped, SourceLine
from advisor.report.kernels import KernelRow
from advisor.report.model import Headline, Report
from advisor.report.recording import DeviceInfo, DeviceTime, Health, Idle, Prediction, Recorded, SourceInfo, Window
from advisor.views.charts.build import picture
from advisor.views.workspace import Workspace
from tests.build import Trace

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
GELU = (
    "void at::native::vectorized_elementwise_kernel<4, "
    "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)"
    "::{lambda()#2}::operator()() const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >"
    "(int, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const"
    "::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul>)"
)
GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
HEALTH = (
    Health(check="clock-causality", status="ok", detail="no kernel starts before its launch (0 of 14,208)"),
    Health(check="dropped-events", status="ok", detail="every launch has its kernel"),
    Health(check="step-spread", status="ok", detail="steps differ by 1.8% (limit 10%)"),
    Health(check="warm-up", status="ok", detail="no compilation or first allocation inside the window"),
    Health(check="profiler-overhead", status="ok", detail="about 1.1 µs per event, 2.0% of the host time"),
)
CLEAR = (
    Clear(rule="precision", why="94% of matrix time runs in BF16 (threshold 80%)"),
    Clear(rule="memcpy", why="exposed copies are 0.3% of the window (threshold 2%)"),
    Clear(rule="optimizer-foreach", why="the optimizer launches 14 kernels a step (threshold 200)"),
    Clear(rule="allocator", why="no cudaMalloc in the window"),
    Clear(rule="recompilation", why="no compilation in the window"),
)


def launch_bound() -> Report:
    """Small kernels, a host that cannot keep up, and a blocking read."""
    idle = Idle(launch=13_420.0, sync=4_310.0, host=1_870.0, data_loading=610.0, unknown=190.0)
    return Report(
        source=SourceInfo(
            path="runs/decode.trace.json.gz",
            format="kineto",
            bytes=48_210_331,
            events=412_880,
            recorded=Recorded(shapes=True, stacks=True, steps=3),
        ),
        devices=(DeviceInfo(id=0, name="NVIDIA H200", sm_count=132),),
        window=Window(start_us=120_400.0, end_us=157_630.0, steps=3, step_us=12_410.0, basis="profiler-step"),
        time=(
            DeviceTime(
                device=0,
                window_us=37_230.0,
                compute_us=16_030.0,
                exposed_comm_us=0.0,
                exposed_copy_us=620.0,
                exposed_memset_us=180.0,
                idle_us=20_400.0,
                idle=idle,
            ),
        ),
        health=(
            *HEALTH[:2],
            Health(
                check="profiler-overhead",
                status="degraded",
                detail="Python stacks were recorded: host time is about 18% too long",
            ),
            *HEALTH[2:4],
        ),
        headline=Headline(
            bottleneck="host-bound",
            summary="The GPU idles for 55% of the step, mostly waiting for the next kernel launch.",
            step_us=12_410.0,
            predicted_step_us=Prediction(low=6_480.0, expected=7_120.0, high=8_350.0),
        ),
        findings=(
            Finding(
                rule="launch-gap",
                severity="high",
                confidence=0.92,
                title="The GPU waits for kernel launches",
                summary="1,184 kernels a step average 4.5 µs, the gaps before them 3.8 µs: the host cannot launch fast enough.",
                saving=Saving(low_us=3_300.0, expected_us=4_120.0, high_us=4_600.0, basis="simulated", removes="launch gaps on stream 7"),
                fix=Fix(
                    title="Capture the step in a CUDA graph",
                    steps=(
                        'Compile the decode step with `mode="reduce-overhead"`, which captures it in a CUDA graph.',
                        "Keep input shapes fixed: pad the batch, or capture one graph for each size that occurs.",
                        "Move the `.item()` call in `sampler.py` out of the captured region.",
                    ),
                    code=Code(
                        before="for _ in range(max_new_tokens):\n    logits = model(tokens, cache)\n    tokens = sample(logits)",
                        after='step = torch.compile(model, mode="reduce-overhead")\n\nfor _ in range(max_new_tokens):\n'
                        "    logits = step(tokens, cache)\n    tokens = sample(logits)",
                    ),
                    url="https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html",
                    risk="A captured graph replays the same addresses: inputs must be copied into static buffers.",
                ),
                evidence=(
                    Evidence(
                        label="gap before vectorized_elementwise_kernel",
                        start_us=121_004.2,
                        dur_us=5_180.0,
                        count=1_362,
                        device=0,
                        stream=7,
                        source=SourceLine(file="/srv/app/model/decode.py", line=88),
                    ),
                    Evidence(
                        label="gap before nvjet_tst_64x8",
                        start_us=121_110.9,
                        dur_us=3_940.0,
                        count=1_120,
                        device=0,
                        stream=7,
                        source=SourceLine(file="/srv/app/model/attention.py", line=141),
                    ),
                    Evidence(label="gap before reduce_kernel", start_us=121_340.5, dur_us=2_240.0, count=610, device=0, stream=7),
                ),
            ),
            Finding(
                rule="sync-stall",
                severity="medium",
                confidence=0.84,
                title="The host waits for the GPU inside the loop",
                summary="`.item()` in the sampler blocks the host 12 times a step; no launch is queued while it waits.",
                saving=Saving(low_us=350.0, expected_us=940.0, high_us=1_420.0, basis="simulated", removes="12 synchronisations"),
                fix=Fix(
                    title="Keep the stopping test on the GPU",
                    steps=(
                        "Test for the end of the sequence on the GPU and read it every 16 steps.",
                        "Read it with `non_blocking=True`.",
                    ),
                    code=Code(
                        before="if next_token.item() == eos:\n    break",
                        after="done |= next_token == eos\nif i % 16 == 15 and done.all():\n    break",
                    ),
                ),
                evidence=(
                    Evidence(
                        label="cudaStreamSynchronize under aten::item",
                        start_us=123_900.0,
                        dur_us=4_310.0,
                        count=36,
                        thread=41_220,
                        source=SourceLine(file="/srv/app/sampler.py", line=52),
                    ),
                ),
            ),
            Finding(
                rule="launch-gap",
                severity="low",
                confidence=0.6,
                title="Gaps on the copy stream",
                summary="48 small copies a step are launched one by one.",
                saving=Saving(low_us=0.0, expected_us=180.0, high_us=420.0, basis="bound"),
                fix=Fix(title="Batch the copies", steps=("Pack the small tensors in one buffer and copy it once.",)),
                evidence=(Evidence(label="Memcpy HtoD (Pinned -> Device)", start_us=125_000.0, dur_us=560.0, count=144, device=0, stream=14),),
            ),
        ),
        clear=CLEAR,
        skipped=(
            Skipped(
                rule="memory-layout",
                why="The trace holds no tensor shapes for convolutions.",
                record_with="profile(record_shapes=True)",
            ),
            Skipped(rule="data-loading", why="No DataLoader worker was traced.", record_with="advisor record --workers train.py"),
        ),
        failed=(),
        kernels=(
            KernelRow(
                name=GEMM,
                family="gemm",
                precision="bf16",
                op="aten::mm",
                calls=1_008,
                total_us=6_120.0,
                mean_us=6.07,
                share=0.364,
                occupancy_pct=18.8,
                gbps=1_210.0,
                tflops=142.0,
            ),
            KernelRow(
                name=ELEMENTWISE,
                family="elementwise",
                precision="fp32",
                op="aten::add",
                calls=1_362,
                total_us=3_480.0,
                mean_us=2.56,
                share=0.207,
                occupancy_pct=81.0,
                gbps=640.0,
            ),
            KernelRow(
                name=GELU,
                family="elementwise",
                precision="bf16",
                op="aten::gelu",
                calls=288,
                total_us=1_440.0,
                mean_us=5.0,
                share=0.086,
                occupancy_pct=88.2,
                gbps=1_830.0,
            ),
            KernelRow(
                name="flash_fwd_splitkv_kernel",
                family="attention",
                precision="bf16",
                op="aten::_scaled_dot_product_flash_attention",
                calls=288,
                total_us=2_880.0,
                mean_us=10.0,
                share=0.171,
                occupancy_pct=12.5,
                gbps=980.0,
                tflops=61.0,
            ),
            KernelRow(
                name="Memcpy HtoD (Pinned -> Device)",
                family="memcpy",
                precision="",
                calls=144,
                total_us=560.0,
                mean_us=3.89,
                share=0.033,
            ),
        ),
        advisor="0.1.0",
    )


def memory_bound() -> Report:
    """Two GPUs whose kernels wait for memory, and gradients that are not hidden; a rule failed."""
    times = tuple(
        DeviceTime(
            device=device,
            window_us=1_840_000.0,
            compute_us=1_380_000.0 + shift,
            exposed_comm_us=294_000.0 - shift,
            exposed_copy_us=36_000.0,
            exposed_memset_us=4_000.0,
            idle_us=126_000.0,
            idle=Idle(dependency=74_000.0, launch=22_000.0, data_loading=18_000.0, unknown=12_000.0),
        )
        for device, shift in ((0, 0.0), (1, 61_000.0))
    )
    return Report(
        source=SourceInfo(
            path="/data/profiles/gpt-1b/rank0.trace.json",
            format="kineto",
            bytes=1_040_222_118,
            events=3_160_412,
            recorded=Recorded(shapes=True, stacks=False, steps=5, memory=True),
        ),
        devices=(DeviceInfo(id=0, name="NVIDIA H200", sm_count=132), DeviceInfo(id=1, name="NVIDIA H200", sm_count=132)),
        window=Window(
            start_us=2_000_000.0,
            end_us=3_840_000.0,
            steps=5,
            step_us=368_000.0,
            basis="detected",
            detail="3 of 5 repeats agree to 1%",
        ),
        time=times,
        health=HEALTH,
        headline=Headline(
            bottleneck="memory-bound",
            summary="Elementwise kernels take 41% of the step and run at 78% of the peak bandwidth: move fewer bytes.",
            step_us=368_000.0,
            predicted_step_us=Prediction(low=262_000.0, expected=281_000.0, high=318_000.0),
        ),
        findings=(
            Finding(
                rule="unfused-elementwise",
                severity="high",
                confidence=0.88,
                title="Chains of elementwise kernels reread the same tensors",
                summary="126 chains of elementwise kernels write 41 GB of tensors a step that a fused kernel keeps in registers.",
                saving=Saving(low_us=38_000.0, expected_us=61_000.0, high_us=74_000.0, basis="simulated", removes="41 GB of traffic"),
                fix=Fix(
                    title="Compile the model so that chains are fused",
                    steps=(
                        "Wrap the model in `torch.compile`.",
                        "Check with `TORCH_LOGS=graph_breaks` that no chain is cut by a graph break.",
                    ),
                    code=Code(before="model = GPT(config).cuda()", after="model = torch.compile(GPT(config).cuda())"),
                    url="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
                    risk="The first step compiles for about a minute; changing shapes compile again.",
                ),
                evidence=(
                    Evidence(
                        label="aten::mul, aten::add, aten::gelu on [16, 2048, 8192]",
                        start_us=2_010_000.0,
                        dur_us=214_000.0,
                        count=480,
                        device=0,
                        stream=7,
                    ),
                    Evidence(
                        label="aten::dropout, aten::add on [16, 2048, 2048]",
                        start_us=2_010_800.0,
                        dur_us=88_000.0,
                        count=480,
                        device=0,
                        stream=7,
                    ),
                ),
                ranks=(0, 1),
            ),
            Finding(
                rule="exposed-communication",
                severity="medium",
                confidence=0.71,
                title="Gradient all-reduce is not hidden behind the backward pass",
                summary="16% of the step waits for ncclDevKernel_AllReduce on its own.",
                saving=Saving(low_us=8_000.0, expected_us=26_000.0, high_us=58_800.0, basis="bound"),
                fix=Fix(
                    title="Start the all-reduce earlier",
                    steps=(
                        "Lower `bucket_cap_mb` so that the first bucket is sent sooner.",
                        "Set `gradient_as_bucket_view=True`.",
                    ),
                ),
                evidence=(
                    Evidence(
                        label="ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                        start_us=2_280_000.0,
                        dur_us=294_000.0,
                        count=65,
                        device=0,
                        stream=24,
                    ),
                ),
            ),
        ),
        clear=CLEAR[2:],
        skipped=(Skipped(rule="sync-stall", why="No Python stacks were recorded.", record_with="profile(with_stack=True)"),),
        failed=(
            Failed(
                rule="acme/house-style",
                error="Traceback (most recent call last):\n  File \"acme.py\", line 12, in rule\nKeyError: 'occupancy'",
            ),
        ),
        kernels=(
            KernelRow(
                name=ELEMENTWISE,
                family="elementwise",
                precision="fp32",
                op="aten::add",
                calls=9_600,
                total_us=412_000.0,
                mean_us=42.9,
                share=0.296,
                occupancy_pct=91.0,
                gbps=3_740.0,
                tflops=0.31,
            ),
            KernelRow(
                name=GEMM,
                family="gemm",
                precision="bf16",
                op="aten::mm",
                calls=1_440,
                total_us=604_000.0,
                mean_us=419.4,
                share=0.434,
                occupancy_pct=14.0,
                gbps=1_100.0,
                tflops=702.0,
            ),
            KernelRow(
                name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                family="collective",
                precision="bf16",
                calls=65,
                total_us=310_000.0,
                mean_us=4_769.0,
                share=0.21,
            ),
            KernelRow(
                name=GELU,
                family="elementwise",
                precision="bf16",
                op="aten::gelu",
                calls=480,
                total_us=83_000.0,
                mean_us=172.9,
                share=0.06,
                occupancy_pct=88.0,
                gbps=3_610.0,
            ),
        ),
        advisor="0.1.0",
    )


def healthy() -> Report:
    """Nothing found: matrix products that run near the peak."""
    return Report(
        source=SourceInfo(
            path="samples/healthy/fixed.json.gz",
            format="kineto",
            bytes=1_204_118,
            events=18_402,
            recorded=Recorded(shapes=True, stacks=True, steps=4),
        ),
        devices=(DeviceInfo(id=0, name="NVIDIA H200", sm_count=132),),
        window=Window(start_us=10_000.0, end_us=174_800.0, steps=4, step_us=41_200.0, basis="profiler-step"),
        time=(
            DeviceTime(
                device=0,
                window_us=164_800.0,
                compute_us=160_300.0,
                exposed_comm_us=0.0,
                exposed_copy_us=400.0,
                exposed_memset_us=0.0,
                idle_us=4_100.0,
                idle=Idle(launch=2_900.0, host=1_200.0),
            ),
        ),
        health=HEALTH,
        headline=Headline(
            bottleneck="compute-bound",
            summary="The GPU computes for 97% of the step, and its matrix products reach 81% of the dense BF16 peak.",
            step_us=41_200.0,
            predicted_step_us=Prediction(low=41_200.0, expected=41_200.0, high=41_200.0),
        ),
        findings=(),
        clear=(
            Clear(rule="launch-gap", why="launch gaps are 1.8% of the window (threshold 5%)"),
            Clear(rule="sync-stall", why="no synchronisation inside a step"),
            Clear(rule="unfused-elementwise", why="elementwise kernels take 3.1% of busy time (threshold 10%)"),
            *CLEAR,
        ),
        skipped=(Skipped(rule="memory-layout", why="The program has no convolution."),),
        failed=(),
        kernels=(
            KernelRow(
                name=GEMM,
                family="gemm",
                precision="bf16",
                op="aten::mm",
                calls=576,
                total_us=118_400.0,
                mean_us=205.6,
                share=0.737,
                occupancy_pct=14.0,
                gbps=1_410.0,
                tflops=803.0,
            ),
            KernelRow(
                name="flash_bwd_kernel",
                family="attention",
                precision="bf16",
                op="aten::_scaled_dot_product_flash_attention_backward",
                calls=96,
                total_us=22_100.0,
                mean_us=230.2,
                share=0.138,
                occupancy_pct=12.5,
                tflops=488.0,
            ),
            KernelRow(
                name="triton_poi_fused_add_mul_gelu_3",
                family="elementwise",
                precision="bf16",
                calls=192,
                total_us=5_020.0,
                mean_us=26.1,
                share=0.031,
                occupancy_pct=72.0,
                gbps=3_900.0,
            ),
        ),
        advisor="0.1.0",
    )


NASTY = (
    "</script><img src=x onerror=alert(1)>",
    "</style></details><script>document.title='pwned'</script>",
    "\x1b[31mred\x1b[0m\x07\x00 \r\n| a | b |\n```\n# heading",
    "[bold red]markup[/] :smile: {{ 7 * 7 }} {% raw %}",
    "`tick` ``two`` ```three``` | pipe \\| <b>x</b> &lt;b&gt;",
    "@torvalds #1 GH-2 www.example.com https://example.com ![i](http://x/y.png) [l](javascript:alert(1))",
    "' onmouseover='alert(1) \" autofocus onfocus=\"alert(1)",
    "-->]]><!-- \u202egnp.exe\u2066 \u200b zero \ud800 lone",
    "void kernel<" + "std::tuple<float, " * 400 + "int>",
)


def hostile() -> Report:
    """Every text of a report is one of the nasty names."""
    state = {"next": -1}

    def bad(most: int = 100_000) -> str:
        state["next"] += 1
        return NASTY[state["next"] % len(NASTY)][:most]

    def finding(number: int) -> Finding:
        return Finding(
            rule=bad(60),
            severity="high",
            confidence=0.5,
            title=bad(),
            summary=NASTY[number % 2],
            saving=Saving(low_us=0.0, expected_us=10.0, high_us=100.0, basis="bound", removes=bad()),
            fix=Fix(title=bad(), steps=tuple(NASTY), code=Code(before=bad(), after="\n".join(NASTY)), url=NASTY[5][-20:], risk=bad()),
            evidence=tuple(
                Evidence(label=name, start_us=1.0, dur_us=5.0, device=0, stream=7, thread=1, source=SourceLine(file=name, line=1)) for name in NASTY
            ),
        )

    return Report(
        source=SourceInfo(path=bad(), format=bad(), bytes=12, events=3, recorded=Recorded(shapes=False, stacks=False, steps=0)),
        devices=tuple(DeviceInfo(id=at, name=name, sm_count=1) for at, name in enumerate(NASTY)),
        window=Window(start_us=0.0, end_us=1_000.0, steps=1, step_us=1_000.0, basis="whole", detail=bad()),
        time=(
            DeviceTime(
                device=0,
                window_us=1_000.0,
                compute_us=100.0,
                exposed_comm_us=100.0,
                exposed_copy_us=100.0,
                exposed_memset_us=50.0,
                idle_us=650.0,
                idle=Idle(
                    sync=100.0,
                    data_loading=90.0,
                    launch=85.0,
                    allocator=80.0,
                    host=80.0,
                    dependency=75.0,
                    profiler=70.0,
                    unknown=70.0,
                ),
            ),
        ),
        health=tuple(Health(check=name, status="failed", detail=name) for name in NASTY),
        headline=Headline(
            bottleneck=bad(),
            summary=bad(),
            step_us=1_000.0,
            predicted_step_us=Prediction(low=800.0, expected=900.0, high=1_000.0),
        ),
        findings=tuple(finding(number) for number in range(10)),
        clear=tuple(Clear(rule=name, why=name) for name in NASTY),
        skipped=tuple(Skipped(rule=name, why=name, record_with=name) for name in NASTY),
        failed=tuple(Failed(rule=name, error=name) for name in NASTY),
        kernels=tuple(
            KernelRow(name=name, family=name, precision=name, op=name, calls=1, total_us=10.0 - at, mean_us=1.0, share=0.1) for at, name in enumerate(NASTY)
        ),
        advisor=bad(),
    )


EXAMPLES = {"launch-bound": launch_bound, "memory-bound": memory_bound, "healthy": healthy, "hostile": hostile}


def hostile_trace() -> Analysis:
    """A trace in which every name is nasty, analysed: charts show them too. A finding points at its first kernel."""
    trace = Trace()
    for step in range(4):
        at = 10_000.0 * step
        trace.step(at, 9_900.0)
        for number, name in enumerate(NASTY * 6):
            start = at + 100.0 * number
            trace.op(name, start, 80.0).note(name, start + 1, 70.0).python(f"train.py({number}): {name}", start + 2, 60.0)
            trace.launch(start + 10, start + 60, start + 90, name, stream=7 + number % 2)
            trace.python(f"nn.Module: {name}", start + 5, 40.0)
        trace.copy(at + 9_000, 20.0, at + 9_050, at + 9_300)
    workspace = Workspace(trace.timeline())
    report = run(trace.timeline(), catalog().values())
    first = float(workspace.get(Timeline).gpu_ops["start_us"][0])
    finding = msgspec.structs.replace(hostile().findings[0], evidence=(Evidence(label=NASTY[0], start_us=first, dur_us=30.0, device=0),))
    return Analysis(msgspec.structs.replace(report, findings=(finding,)), lambda: picture(workspace, [finding]))
