// types: f32 f16 bf16
// oldest: sm_80
// The three passes of convolutions on tensor cores, without a workspace, for any geometry of more than
// a few rows: see conv_gather.cuh, conv_weight.cuh and tensor.cuh. f32 is rounded to TF32.
#include "conv_gather.cuh"
#include "conv_weight.cuh"
#include "tensor.cuh"

PASSES(tensor_64, 2, tiled, Tensor<64>, 64, i32)
PASSES(tensor_128, 1, tiled, Tensor<128>, 128, i32)
WEIGHT_GRADIENT(tensor_64, 2, Tensor<64>, 64, i32)
WEIGHT_GRADIENT(tensor_128, 1, Tensor<128>, 128, i32)
