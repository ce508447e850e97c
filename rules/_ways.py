"""Fixes in the terms of the program that was traced: what it writes out by hand, the server that it is, or CUDA itself."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from advisor.report.finding import Code, Fix
from advisor.report.numbers import counted
from advisor.views.trace.program import Program
from advisor.views.trace.spellings import Spellings

JIT = Fix(
    title="Compile the whole step with jax.jit",
    steps=(
        "Wrap the outermost function of the step in jax.jit: one executable replaces all that is dispatched op by op, or layer by layer.",
        "In a training step jit the update as a whole, jax.value_and_grad and the optimizer in it, and donate the old state.",
        "Loops over layers: jax.lax.scan keeps compilation short.",
    ),
    code=Code(
        before="loss, grads = jax.value_and_grad(loss_fn)(params, batch)\nparams = update(params, grads)",
        after="@partial(jax.jit, donate_argnums=0)\ndef step(params, batch):\n"
        "    loss, grads = jax.value_and_grad(loss_fn)(params, batch)\n    return update(params, grads), loss",
    ),
    url="https://docs.jax.dev/en/latest/jit-compilation.html",
    risk="The first call compiles, and so does each new shape. Python in the step runs once, when it is traced; its side effects are lost. "
    "Fused kernels round differently in the last bits.",
)

CAPTURE = Fix(
    title="Capture the step once and replay it",
    steps=(
        "Make the step read from and write to tensors that stay where they are; Adam and its family need capturable=True, and a learning rate that changes has to be a tensor, filled in place.",
        "Capture it after a few warm-up runs on a side stream, then copy each batch in and replay.",
    ),
    code=Code(
        before="for x in batches:\n    out = step(x)",
        after="graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    static_out = step(static_x)\n\n"
        "for x in batches:\n    static_x.copy_(x)\n    graph.replay()  # static_out holds the result",
    ),
    url="https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",
    risk="Python inside the step no longer runs, shapes must stay, and the graph keeps its memory.",
)
"""Where all steps launch the same."""

BUCKETS = Fix(
    title="Average gradients in buckets beside the backward pass",
    steps=(
        "Wrap the model in DistributedDataParallel, which averages each bucket as soon as it is ready.",
        "Where that does not fit: start all_reduce with async_op=True from a hook of each parameter, and wait before the optimizer.",
    ),
    code=Code(
        before="loss.backward()\nfor p in model.parameters():\n    dist.all_reduce(p.grad)\n    p.grad /= world_size\noptimizer.step()",
        after="model = DistributedDataParallel(model, gradient_as_bucket_view=True)\n...\nloss.backward()  # averages as it goes\noptimizer.step()",
    ),
    url="https://docs.pytorch.org/docs/stable/notes/ddp.html",
    risk="Buckets hold a copy of the gradients unless gradient_as_bucket_view=True. Parameters that got no gradient need find_unused_parameters.",
)

_DOCS = "https://docs.pytorch.org/docs/stable/generated/"


class Way(NamedTuple):
    """One call for what the trace shows written out."""

    title: str
    step: str
    code: Code
    url: str


def _ways(seen: Spellings) -> list[Way]:
    found = []
    if seen.cell:
        module = {"lstm": "LSTM", "gru": "GRU"}.get(seen.cell, "RNN")
        state, relu = "(h, c)" if seen.cell == "lstm" else "h", ", nonlinearity='relu'" * (seen.cell == "rnn_relu")
        found.append(Way(
            f"Run the recurrence as one nn.{module}",
            f"Replace the loop over the cell ({counted(seen.cells, 'call')} a step) by nn.{module}: one call runs all time steps. "
            "Its parameters have a layer's number in their names (weight_ih_l0): rename a checkpoint's. A state to begin with has one more axis, in front.",
            Code(
                before=f"for t in range(x.shape[1]):\n    {state.strip('()')} = cell(x[:, t], {state})",
                after=f"rnn = torch.nn.{module}(n_in, n_hidden, batch_first=True{relu})  # once\n\nout, {state} = rnn(x)",
            ),
            f"{_DOCS}torch.nn.{module}.html",
        ))  # fmt: skip
    if seen.grows:
        found.append(Way(
            "Keep the cache at a fixed size",
            f"A tensor grows by concatenation, from {seen.grows[0]} to {seen.grows[1]}: allocate it once at its full length and write into it, so "
            "that nothing is copied and every step has the same shapes, which CUDA graphs need. Mask what is not filled yet.",
            Code(
                before="k = torch.cat([past_k, k], dim=2)\nv = torch.cat([past_v, v], dim=2)",
                after="cache_k[:, :, position : position + 1] = k  # (batch, heads, longest, size), made once\ncache_v[:, :, position : position + 1] = v\n"
                '# transformers: model.generate(..., cache_implementation="static")',
            ),
            "https://huggingface.co/docs/transformers/kv_cache#static-cache",
        ))  # fmt: skip
    if seen.grows_values and not seen.grows:
        found.append(Way(
            "Write what is collected into a tensor of its full length",
            f"A list of values, as of chosen words, grows by concatenation, from {seen.grows_values[0]} to {seen.grows_values[1]}: allocate it once at "
            "its full length and write into it, so that every step has the same shapes, which CUDA graphs need.",
            Code(
                before="found = torch.cat([found, word[:, None]], dim=1)",
                after="found = word.new_zeros(len(word), longest)  # once, before the loop\n\nfound[:, position] = word",
            ),
            "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",
        ))  # fmt: skip
    if seen.picked >= 1:
        found.append(Way(
            "Call F.cross_entropy",
            "The loss takes a log-softmax and picks the target's value from it: torch.nn.functional.cross_entropy does both.",
            Code(
                before="log_p = logits.log_softmax(-1)\nloss = -log_p.gather(-1, target[..., None]).mean()",
                after="loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten())",
            ),
            f"{_DOCS}torch.nn.functional.cross_entropy.html",
        ))  # fmt: skip
    return found


def spelt(fix: Fix, seen: Spellings, *wanted: str, leads: bool = True) -> Fix:
    """The fix, led by the one call for what the trace shows written out; `wanted` are the fields of Spellings that this finding is about. leads: whether
    most of what it gains is that call's, which is one more step where it is not."""
    seen = Spellings(**{name: getattr(seen, name) for name in (*wanted, *(("cells",) if "cell" in wanted else ()))})
    ways = _ways(seen)
    if not (ways and leads):
        return msgspec.structs.replace(fix, steps=(*fix.steps, *(way.step for way in ways), *_beside(seen)))
    steps = (*(way.step for way in ways), *fix.steps, *_beside(seen))
    return Fix(title=ways[0].title, steps=steps, code=ways[0].code, url=ways[0].url, risk=fix.risk)


def _beside(seen: Spellings) -> list[str]:
    """What leads no fix: a few products of many launches are little of what is gained, and no trace tells heads from time steps."""
    if not seen.sliced:
        return []
    return [
        f"{seen.sliced:.0f} products a step take one slice after another: where they are of heads, experts or samples, which do not wait for each other, "
        "stack them and call torch.bmm once, or scaled_dot_product_attention where they are attention's."
    ]


_SERVERS = {
    "vLLM": Fix(
        title="Let vLLM replay its steps from CUDA graphs",
        steps=(
            "Leave enforce_eager off (no --enforce-eager): vLLM then compiles the model and captures decode steps as CUDA graphs.",
            "See that the batch sizes that occur are captured: cudagraph_capture_sizes of the compilation config.",
            "Then raise max_num_seqs: more requests in a step give each launch more work.",
        ),
        code=Code(before="llm = LLM(model, enforce_eager=True)", after="llm = LLM(model, enforce_eager=False)"),
        url="https://docs.vllm.ai/en/latest/design/cuda_graphs.html",
        risk="Capturing takes time at the start, and memory for each captured size.",
    ),
    "SGLang": Fix(
        title="Let SGLang replay its steps from CUDA graphs",
        steps=(
            "Start the server without --disable-cuda-graph.",
            "Raise --cuda-graph-max-bs to the largest batch that occurs: larger ones run eagerly.",
        ),
        code=Code(
            before="python -m sglang.launch_server --model-path MODEL --disable-cuda-graph",
            after="python -m sglang.launch_server --model-path MODEL --cuda-graph-max-bs 64",
        ),
        url="https://docs.sglang.ai/advanced_features/server_arguments.html",
        risk="Capturing takes time at the start, and memory for each captured size.",
    ),
    "TensorRT-LLM": Fix(
        title="Let TensorRT-LLM replay its steps from CUDA graphs",
        steps=("Turn CUDA graphs on and pad batches to the captured sizes.",),
        code=Code(
            before="llm = LLM(model, cuda_graph_config=None)",
            after="llm = LLM(model, cuda_graph_config=CudaGraphConfig(enable_padding=True))",
        ),
        url="https://nvidia.github.io/TensorRT-LLM/",
        risk="Capturing takes time at the start, and memory for each captured size.",
    ),
}  # fmt: skip


def of_server(program: Program) -> Fix | None:
    """How an inference server is told to launch less; None where the program is none."""
    return _SERVERS.get(program.server)


_SCHEDULING = {
    "vLLM": Fix(
        title="Let vLLM plan the next step while the GPU works on this one",
        steps=(
            "Turn async scheduling on where the version has it and does not by itself: the next step is planned and launched before this one's tokens are read.",
            "Then look at what is left between steps: tokenising and sending answers belong in other processes than the engine's.",
        ),
        code=Code(before="vllm serve MODEL", after="vllm serve MODEL --async-scheduling"),
        url="https://docs.vllm.ai/en/latest/configuration/engine_args.html",
        risk="Some features need each step's tokens before the next is planned, and turn it off.",
    ),
    "SGLang": Fix(
        title="Let SGLang plan the next step while the GPU works on this one",
        steps=("Leave the overlap scheduler on: start the server without --disable-overlap-schedule.",),
        code=Code(before="python -m sglang.launch_server --model-path MODEL --disable-overlap-schedule", after="python -m sglang.launch_server --model-path MODEL"),
        url="https://docs.sglang.ai/advanced_features/server_arguments.html",
        risk="Some features need each step's tokens before the next is planned, and turn it off.",
    ),
    "TensorRT-LLM": Fix(
        title="Let TensorRT-LLM plan the next step while the GPU works on this one",
        steps=("Leave the overlap scheduler on.",),
        code=Code(before="llm = LLM(model, disable_overlap_scheduler=True)", after="llm = LLM(model)"),
        url="https://nvidia.github.io/TensorRT-LLM/",
        risk="Some features need each step's tokens before the next is planned, and turn it off.",
    ),
}  # fmt: skip

PLANS_WHY = "a server reads each step's tokens to send them on and to plan the next step; whether it can do that beside the GPU's work is its version's and its options'"
PLANS_DECIDE = "the same requests served with and without that option"


def planning_of(program: Program) -> Fix | None:
    """How an inference server is told to plan the next step beside the GPU's work; None where the program is none."""
    return _SCHEDULING.get(program.server)


SINGLE_IN_CUDA = Fix(
    title="Compute in single precision",
    steps=(
        "Find the doubles: nvcc -Xptxas -warn-double-usage; look for constants without f and functions without f.",
        "Write 0.5f, tanhf, powf, sqrtf, fmaf; in Triton pass tensors of float32 and cast what Python made float64.",
        "Keep double only where it is needed, as in the last step of a long sum.",
    ),
    code=Code(
        before="// CUDA\nout[i] = 0.5 * x * (1.0 + tanh(x));\n\n# Triton\ny = tl.load(ptr)  # float64 tensor",
        after="// CUDA\nout[i] = 0.5f * x * (1.0f + tanhf(x));\n\n# Triton\ny = tl.load(ptr).to(tl.float32)",
    ),
    url="https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#single-vs-double-precision",
    risk="Single precision has seven digits: check the result.",
)

ONE_TYPE = Fix(
    title="Stay in FP32, or in FP64",
    steps=(
        "Find what is FP64: arrays of NumPy are unless told otherwise, torch.from_numpy keeps their type, and dtype=torch.float64 or .double() asks for it.",
        "Convert it once where it is made, before the loop, not at each use.",
        "Where a stretch needs the digits of FP64, compute all of it so, or torch.compile it: then the casts are part of its kernels.",
    ),
    code=Code(
        before='x = torch.from_numpy(features).to("cuda")  # FP64\nfor _ in range(steps):\n    out = model(x.float())',
        after='x = torch.from_numpy(features).float().to("cuda")  # once\nfor _ in range(steps):\n    out = model(x)',
    ),
    url="https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch-dtype",
    risk="FP32 has seven digits: compare the result.",
)
"""Where a program casts between FP64 and FP32 alone."""

_GUIDE = "https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html"
DIVIDED_IN_CUDA = Fix(
    title="Divide the work over the whole device",
    steps=(
        "Launch at least as many blocks as the device has multiprocessors: divide along one more axis, or give each block less.",
        "Run independent kernels on several streams, so that they fill the device together.",
    ),
    code=Code(
        before="// CUDA: a block a row\nsum<<<rows, 256>>>(x, out);\n\n# Triton\nsum_rows[(rows,)](x, out)",
        after="// CUDA: several blocks a row, then one for their results\nsum<<<dim3(rows, parts), 256>>>(x, partial);\nsum<<<rows, 256>>>(partial, out);\n\n"
        "# Triton\nsum_rows[(rows, parts)](x, partial)\nsum_rows[(rows,)](partial, out)",
    ),
    url=f"{_GUIDE}#thread-and-block-heuristics",
    risk="Partial results are added in another order: the last bits differ.",
)

_CUDA = {
    "launch-gap": Fix(
        title="Capture the launches in a CUDA graph",
        steps=(
            "Capture the sequence that repeats once, and launch the graph instead: one call in place of all of these.",
            "Or give each launch more work: put kernels that follow each other into one, batch what is independent.",
            "Where the host computes between launches, launch first and compute while the GPU works.",
        ),
        code=Code(
            before="for (int i = 0; i < n; i++) {\n    a<<<grid, block, 0, stream>>>(x);\n    b<<<grid, block, 0, stream>>>(x);\n}",
            after="cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);\na<<<grid, block, 0, stream>>>(x);\nb<<<grid, block, 0, stream>>>(x);\n"
            "cudaStreamEndCapture(stream, &graph);\ncudaGraphInstantiate(&instance, graph, 0);\nfor (int i = 0; i < n; i++)\n    cudaGraphLaunch(instance, stream);",
        ),
        url="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-graphs",
        risk="Arguments are fixed when the graph is captured; change them with cudaGraphExecKernelNodeSetParams.",
    ),
    "sync-stall": Fix(
        title="Wait only where the host needs the result",
        steps=(
            "Take cudaDeviceSynchronize and cudaStreamSynchronize out of the loop: kernels of one stream run in order without them.",
            "Order streams with events (cudaStreamWaitEvent), which does not stop the host.",
            "Read results with cudaMemcpyAsync into pinned memory, and wait for an event one iteration later.",
        ),
        code=Code(
            before="kernel<<<grid, block>>>(x);\ncudaDeviceSynchronize();\nnext<<<grid, block>>>(x);",
            after="kernel<<<grid, block, 0, stream>>>(x);\nnext<<<grid, block, 0, stream>>>(x);  // runs after it by itself",
        ),
        url=f"{_GUIDE}#host-and-device-synchronization",
        risk="Errors of a kernel show at a later call.",
    ),
    "sync-stall of copies": Fix(
        title="Read results without stopping the host",
        steps=(
            "cudaMemcpy waits for its copy and all before it, as does cudaMemcpyAsync to the host's pageable memory: copy with cudaMemcpyAsync into memory of cudaMallocHost.",
            "Record an event behind the copy, launch the next iteration, and wait for the event only where the value is read.",
            "Or read every N iterations only; what just kernels use stays on the device.",
        ),
        code=Code(
            before="cudaMemcpy(&error, d_error, sizeof(float), cudaMemcpyDeviceToHost);\nif (error < limit) break;",
            after="// once: cudaMallocHost(&error, sizeof(float));\ncudaMemcpyAsync(error, d_error, sizeof(float), cudaMemcpyDeviceToHost, stream);\n"
            "cudaEventRecord(copied, stream);\nkernel<<<grid, block, 0, stream>>>(x);  // the next iteration\n"
            "cudaEventSynchronize(copied);\nif (*error < limit) break;",
        ),
        url=f"{_GUIDE}#asynchronous-and-overlapping-transfers-with-computation",
        risk="The value is read an iteration later than before.",
    ),
    "host-bound": Fix(
        title="Let the device work while the host does",
        steps=(
            "Launch the next kernels before the host's work, and wait for them only after it: launches return at once.",
            "Give work that does not depend on the result (reading, writing, decoding, logging) to another thread, or do it every N iterations.",
            "Move what does depend on it onto the device, and keep data there between iterations.",
        ),
        code=Code(
            before="for (…) {\n  prepare(next);  // on the host\n  kernel<<<grid, block>>>(x);\n  cudaDeviceSynchronize();\n}",
            after="for (…) {\n  kernel<<<grid, block, 0, stream>>>(x);\n  prepare(next);  // while the kernel runs\n  cudaStreamSynchronize(stream);\n}",
        ),
        url=f"{_GUIDE}#asynchronous-and-overlapping-transfers-with-computation",
        risk="What the kernel reads must not be overwritten while it runs: two buffers in turn.",
    ),
    "memcpy": Fix(
        title="Copy from pinned memory, on a stream of its own",
        steps=(
            "Allocate the host's buffers with cudaMallocHost, or pin those that exist once with cudaHostRegister.",
            "Copy with cudaMemcpyAsync in pieces on a second stream, so that one piece moves while the GPU computes on the other.",
            "Leave on the device what the next kernel reads there, and copy small pieces together.",
        ),
        code=Code(
            before="float *host = (float *)malloc(bytes);\ncudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice);\nkernel<<<grid, block>>>(device);",
            after="cudaMallocHost(&host, bytes);\nfor (int i = 0; i < pieces; i++) {\n"
            "    cudaMemcpyAsync(device + i * n, host + i * n, n * sizeof(float), cudaMemcpyHostToDevice, stream[i % 2]);\n"
            "    kernel<<<grid / pieces, block, 0, stream[i % 2]>>>(device + i * n);\n}",
        ),
        url=f"{_GUIDE}#asynchronous-and-overlapping-transfers-with-computation",
        risk="Pinned memory cannot be swapped out. A buffer must not be overwritten before its copy is done.",
    ),
    "memcpy of pinned memory": Fix(
        title="Copy less, and without waiting for it",
        steps=(
            "Leave on the device what the next kernel reads there, and copy small pieces together.",
            "Do not wait after each copy: what its stream runs next comes after it by itself. Wait where the host reads the result or writes the buffer again.",
            "Copy in pieces on a second stream, so that one piece moves while the GPU computes on the other.",
        ),
        code=Code(
            before="for (...) {\n    cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream);\n    cudaStreamSynchronize(stream);\n"
            "    kernel<<<grid, block, 0, stream>>>(device);\n}",
            after="for (int i = 0; ...; i++) {\n    cudaMemcpyAsync(device[i % 2], host[i % 2], bytes, cudaMemcpyHostToDevice, stream[i % 2]);\n"
            "    kernel<<<grid, block, 0, stream[i % 2]>>>(device[i % 2]);\n}",
        ),
        url=f"{_GUIDE}#asynchronous-and-overlapping-transfers-with-computation",
        risk="A buffer must not be overwritten before its copy is done.",
    ),
    "allocator": Fix(
        title="Allocate before the loop",
        steps=(
            "Allocate the buffers once and use them again in each iteration.",
            "Where sizes change: cudaMallocAsync and cudaFreeAsync take memory from a pool and do not stop the device.",
        ),
        code=Code(
            before="for (...) {\n    cudaMalloc(&x, bytes);\n    kernel<<<grid, block>>>(x);\n    cudaFree(x);\n}",
            after="cudaMalloc(&x, bytes);\nfor (...)\n    kernel<<<grid, block>>>(x);\ncudaFree(x);",
        ),
        url="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#stream-ordered-memory-allocator",
        risk="The buffers hold their memory between iterations.",
    ),
    "unfused-elementwise": Fix(
        title="Compute the chain in one kernel",
        steps=(
            "Put the kernels that follow each other on the same elements into one, which keeps what is between them in registers.",
            "With Thrust: a transform_iterator or zip_iterator in place of a pass of its own.",
        ),
        code=Code(
            before="scale<<<grid, block>>>(x, n);\nadd<<<grid, block>>>(x, y, n);",
            after="scale_add<<<grid, block>>>(x, y, n);  // x[i] = a * x[i] + y[i]",
        ),
        url=f"{_GUIDE}#device-memory-spaces",
        risk="Intermediate results keep more precision in registers, so the last bits may differ.",
    ),
    "precision": Fix(
        title="Let Tensor Cores do the products",
        steps=(
            "cuBLAS: cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH), or cublasGemmEx with CUBLAS_COMPUTE_32F_FAST_16BF.",
            "Kernels of one's own: CUTLASS, or the wmma functions, on 16-bit inputs with FP32 accumulation.",
            "Hold the result against an FP32 run before you trust it.",
        ),
        code=Code(before="cublasSgemm(handle, ...);", after="cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);\ncublasSgemm(handle, ...);"),
        url="https://docs.nvidia.com/cuda/cublas/index.html#cublassetmathmode",
        risk="TF32 keeps 10 bits of mantissa, BF16 7: results differ in the third to fourth digit.",
    ),
    "exposed-communication": Fix(
        title="Run communication beside what does not need it",
        steps=(
            "Start each collective on a stream of its own as soon as its operand is written, and let the stream that reads the result wait for it as late as it can.",
            "Put collectives that are ready together between ncclGroupStart and ncclGroupEnd.",
            "Record the same steps on every rank, one file each in a directory, and run advisor analyze on the directory: it tells waiting from transfer.",
        ),
        code=Code(
            before="ncclAllReduce(a, a, n, ncclFloat, ncclSum, comm, stream);\nother<<<grid, block, 0, stream>>>(b);",
            after="cudaEventRecord(written, stream);\ncudaStreamWaitEvent(side, written);\nncclAllReduce(a, a, n, ncclFloat, ncclSum, comm, side);\ncudaEventRecord(summed, side);\n"
            "other<<<grid, block, 0, stream>>>(b);  // what does not read a\ncudaStreamWaitEvent(stream, summed);",
        ),
        url="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/streams.html",
        risk="Beside a collective kernels run slower, since it takes multiprocessors and memory rate.",
    ),
    "needed-sums": Fix(
        title="Make each sum faster: the next kernel needs it",
        steps=(
            "Capture the step in a CUDA graph, NCCL's calls and all, where the host cannot issue them as fast as they run.",
            "Register the buffers with NCCL (ncclMemAlloc and ncclCommWindowRegister): between GPUs linked by NVLink it then takes fewer hops.",
            "Divide the work over fewer GPUs where each has little to do between two sums.",
        ),
        url="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/bufferreg.html",
        risk="Sums in another order differ in the last bits.",
    ),
    "small-messages": Fix(
        title="Send few large messages instead of many small ones",
        steps=(
            "Write what is sent together into one buffer, and send that.",
            "Where buffers must stay apart, put the calls between ncclGroupStart and ncclGroupEnd: they are one launch.",
        ),
        code=Code(
            before="for (int i = 0; i < n; i++)\n    ncclAllReduce(x[i], x[i], count, ncclFloat, ncclSum, comm, stream);",
            after="ncclGroupStart();\nfor (int i = 0; i < n; i++)\n    ncclAllReduce(x[i], x[i], count, ncclFloat, ncclSum, comm, stream);\nncclGroupEnd();",
        ),
        url="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/groups.html",
        risk="What is ready first waits for what is ready last.",
    ),
    "fp64": SINGLE_IN_CUDA,
    "small-grid": DIVIDED_IN_CUDA,
}  # fmt: skip


def for_program(program: Program, rule: str, fix: Fix) -> Fix:
    """The fix; in CUDA's terms where nothing of a framework shows in the trace."""
    return for_framework(program.framework, rule, fix)


def for_framework(framework: str, rule: str, fix: Fix) -> Fix:
    """The same by the framework's name alone, as a job's ranks tell it."""
    return _CUDA.get(rule, fix) if framework == "cuda" else fix
