"""Parts of two steps that do the same work are found although names, ops and numbers of kernels changed."""

from advisor.compare.matching import match
from advisor.report.step import Part


def kernel(name, op="", shapes="", module="", us=10.0, calls=1.0, kind="compute"):
    return Part(kind, name, "elementwise", op, module, shapes, calls, us)


def told(before, after):
    return [([p.name for p in m.before], [p.name for p in m.after], m.relation) for m in match(before, after)]


def test_equal_parts_match_and_nothing_is_left():
    parts = [kernel("gemm", "aten::mm"), kernel("add", "aten::add"), Part("idle", "launch", us=5)]
    assert told(parts, parts) == [([p.name], [p.name], "same") for p in parts]


def test_the_same_kernel_in_two_modules_keeps_to_its_module():
    before = [kernel("add", "aten::add", module="A", us=1), kernel("add", "aten::add", module="B", us=2)]
    pairs = match(before, before[::-1])
    assert {(m.before[0].module, m.after[0].module) for m in pairs} == {("A", "A"), ("B", "B")}


def test_a_library_that_chose_another_kernel_for_the_same_product():
    before = [kernel("cutlass_80", "aten::mm", "[[64, 64]]"), kernel("add", "aten::add")]
    after = [kernel("nvjet_90", "aten::mm", "[[64, 64]]"), kernel("add", "aten::add")]
    assert (["cutlass_80"], ["nvjet_90"], "renamed") in told(before, after)


def test_other_shapes_are_other_work():
    found = told([kernel("small", "aten::mm", "[[64]]"), kernel("x", "aten::add")], [kernel("x", "aten::add"), kernel("big", "aten::mm", "[[512]]")])
    assert (["small"], [], "gone") in found and ([], ["big"], "new") in found


def test_a_chain_between_two_neighbours_became_one_kernel():
    ends = kernel("first", "aten::mm"), kernel("last", "aten::addmm")
    before = [ends[0], kernel("mul", "aten::mul"), kernel("add", "aten::add"), kernel("gelu", "aten::gelu"), ends[1]]
    after = [ends[0], kernel("triton_poi_fused_add_gelu_mul_0", "triton"), ends[1]]
    assert (["mul", "add", "gelu"], ["triton_poi_fused_add_gelu_mul_0"], "fused") in told(before, after)


def test_one_kernel_became_several():
    ends = kernel("first", "aten::mm"), kernel("last", "aten::addmm")
    before = [ends[0], kernel("flash", "aten::_flash_attention"), ends[1]]
    after = [ends[0], kernel("qk", "aten::bmm"), kernel("soft", "aten::softmax"), ends[1]]
    assert (["flash"], ["qk", "soft"], "split") in told(before, after)


def test_what_changed_in_two_places_is_two_groups():
    anchor = [kernel(f"anchor{i}", f"aten::op{i}") for i in range(3)]
    before = [anchor[0], kernel("a", "aten::a"), anchor[1], kernel("b", "aten::b"), anchor[2]]
    after = [anchor[0], kernel("a2", "aten::a2"), anchor[1], kernel("b2", "aten::b2"), anchor[2]]
    assert {(tuple(x), tuple(y)) for x, y, _ in told(before, after) if x != y} == {(("a",), ("a2",)), (("b",), ("b2",))}


def test_a_memset_inside_an_op_does_not_part_what_belongs_together():
    fill = kernel("Memset", kind="memset")
    before = [kernel("qk", "aten::bmm"), fill, kernel("av", "aten::bmm2")]
    assert (["qk", "av"], ["flash"], "fused") in told(before, [fill, kernel("flash", "aten::flash")])


def test_idle_causes_come_and_go_and_are_never_replaced():
    found = told([Part("idle", "sync", us=5)], [Part("idle", "launch", us=4)])
    assert found == [(["sync"], [], "gone"), ([], ["launch"], "new")]


CUPTI, KINETO = "void at::native::k<(int)4, <unnamed>::f(T1 &)>(int, T2)", "void at::native::k<4, (anonymous namespace)::f(float&)>(int, float)"


def test_demanglers_spell_one_kernel_and_one_without_ops_holds_it_in_one_part():
    before = [kernel(KINETO, "aten::add", module="A", us=1), kernel("gemm", "aten::mm"), kernel(KINETO, "aten::add", module="B", us=2)]
    after = [kernel(CUPTI, us=3), kernel("gemm")]
    assert told(before, after) == [([KINETO, KINETO], [CUPTI], "same"), (["gemm"], ["gemm"], "same")]
    assert told(after, before) == [([CUPTI], [KINETO, KINETO], "same"), (["gemm"], ["gemm"], "same")]


def test_copies_of_other_memory_are_no_spellings_of_one():
    pageable, pinned = (kernel(f"Memcpy HtoD ({of} -> Device)", kind="copy") for of in ("Pageable", "Pinned"))
    assert all(m.relation != "same" for m in match([pageable], [pinned]))
