"""One kernel, spelled by CUPTI, Kineto and the CSV page of Nsight Compute."""

import pytest

from advisor.knowledge.demangled import function_name, plain_name, same_name

SPELLED = {
    "cupti": "void at::native::k<(int)4, void at::native::<unnamed>::pow_impl<float, float>(at::TensorIteratorBase &, T2)::"
    "[lambda(float) (instance 2)], std::array<char *, (unsigned long)2>, (bool)1>(int, T2, T3)",
    "kineto": "void at::native::k<4, at::native::(anonymous namespace)::pow_impl<float, float>(at::TensorIteratorBase&, float)::"
    "{lambda(float)#2}, std::array<char*, 2ul>, true>(int, at::native::(anonymous namespace)::pow_impl<float, float>"
    "(at::TensorIteratorBase&, float)::{lambda(float)#2}, std::array<char*, 2ul>)",
    "csv": "void k<4, void unnamed>::pow_impl<float, float>(TensorIteratorBase &, T2)::[lambda(float) (instance 2)], std::array<char *, 2>, 1>(int, T2, T3)",
}


@pytest.mark.parametrize("tool", SPELLED)
def test_all_tools_spell_one_kernel(tool):
    assert same_name(SPELLED[tool]) == "k<4,pow_impl<float,float>{lambda#2},array<char*,2>,1>"
    assert function_name(SPELLED[tool]) == "k"


def test_other_arguments_are_another_kernel():
    assert same_name("void f<(int)4>(int)") != same_name("void f<8>(int)")
    assert same_name("f<float>") != same_name("f<double>")


def test_a_plain_name_has_no_parameters():
    assert plain_name("void f<int>(float (*)(int), char*)") == "f<int>"
    assert plain_name("void ns::f<(int)2>() const") == "ns::f<(int)2>"
    assert plain_name("triton_poi_fused_add_0") == "triton_poi_fused_add_0"
    assert plain_name(")") == ")"
