// Kernels with one fault each (NAME_slow) and the repaired twin (NAME_fixed), which computes the same.
// pairs.py compiles and runs them.
#define KERNEL extern "C" __global__ void

// uncoalesced-access: an array of structures of eight floats, one field read; twin: one array a field.
struct Particle { float x, y, z, mass, vx, vy, vz, charge; };
KERNEL particle_mass_slow(const Particle *p, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 0.5f * p[i].mass + p[i].vx * p[i].vx;
}
KERNEL particle_mass_fixed(const float *mass, const float *vx, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 0.5f * mass[i] + vx[i] * vx[i];
}

// uncoalesced-access: a thread a row of a row-major matrix; twin: a warp a row.
KERNEL row_norm_slow(const float *a, float *out, int rows, int columns) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.f;
    for (int c = 0; c < columns; ++c) { float v = a[(size_t)row * columns + c]; sum += v * v; }
    out[row] = sum;
}
KERNEL row_norm_fixed(const float *a, float *out, int rows, int columns) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0.f;
    for (int c = lane; c < columns; c += 32) { float v = a[(size_t)row * columns + c]; sum += v * v; }
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
    if (!lane) out[row] = sum;
}

// uncoalesced-access: a transpose whose stores are a column apart; twin: through padded shared memory.
KERNEL transpose_store_slow(const float *in, float *out, int n) {
    int x = blockIdx.x * 32 + threadIdx.x, y0 = blockIdx.y * 32 + threadIdx.y;
    for (int y = y0; y < blockIdx.y * 32 + 32; y += 8) out[(size_t)x * n + y] = in[(size_t)y * n + x];
}
KERNEL transpose_store_fixed(const float *in, float *out, int n) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int d = 0; d < 32; d += 8) tile[threadIdx.y + d][threadIdx.x] = in[(size_t)(y + d) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
    for (int d = 0; d < 32; d += 8) out[(size_t)(y + d) * n + x] = tile[threadIdx.x][threadIdx.y + d];
}

// bank-conflicts: a scan in shared memory whose threads step a power of two; twin: one word of padding each 32.
#define SCAN 1024
template <bool padded> __device__ int place(int i) { return padded ? i + i / 32 : i; }
template <bool padded> __device__ void scan_block(const float *in, float *out) {
    __shared__ float s[SCAN + SCAN / 32];
    int t = threadIdx.x, base = blockIdx.x * SCAN;
    s[place<padded>(t)] = in[base + t];
    s[place<padded>(t + 512)] = in[base + t + 512];
    for (int offset = 1; offset < SCAN; offset *= 2) {
        __syncthreads();
        int i = (t + 1) * offset * 2 - 1;
        if (i < SCAN) s[place<padded>(i)] += s[place<padded>(i - offset)];
    }
    for (int offset = SCAN / 4; offset > 0; offset /= 2) {
        __syncthreads();
        int i = (t + 1) * offset * 2 - 1;
        if (i + offset < SCAN) s[place<padded>(i + offset)] += s[place<padded>(i)];
    }
    __syncthreads();
    out[base + t] = s[place<padded>(t)];
    out[base + t + 512] = s[place<padded>(t + 512)];
}
KERNEL block_scan_slow(const float *in, float *out) { scan_block<false>(in, out); }
KERNEL block_scan_fixed(const float *in, float *out) { scan_block<true>(in, out); }

// bank-conflicts: each thread walks a row of 64 words of shared memory; twin: rows of 65.
template <int pitch> __device__ void softmax_rows(const float *in, float *out) {
    extern __shared__ float s[];
    size_t base = (size_t)blockIdx.x * 64 * 64;
    for (int i = threadIdx.x; i < 64 * 64; i += 64) s[i / 64 * pitch + i % 64] = in[base + i];
    __syncthreads();
    float *row = s + threadIdx.x * pitch, top = row[0], sum = 0.f;
    for (int i = 1; i < 64; ++i) top = fmaxf(top, row[i]);
    for (int i = 0; i < 64; ++i) sum += row[i] = __expf(row[i] - top);
    for (int i = 0; i < 64; ++i) row[i] /= sum;
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * 64; i += 64) out[base + i] = s[i / 64 * pitch + i % 64];
}
KERNEL shared_softmax_slow(const float *in, float *out) { softmax_rows<64>(in, out); }
KERNEL shared_softmax_fixed(const float *in, float *out) { softmax_rows<65>(in, out); }

// low-occupancy: gathers that wait for memory, with 200 KiB of shared memory reserved for a table of 1 KiB.
__device__ void gather_with_table(const int *index, const float *data, float *out, int n, int rounds) {
    extern __shared__ float table[];
    table[threadIdx.x] = threadIdx.x * 0.01f;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x, at = i % n;
    float sum = 0.f;
    for (int r = 0; r < rounds; ++r) { at = index[at]; sum += data[at] * table[at % 256]; }
    out[i] = sum;
}
KERNEL table_gather_slow(const int *index, const float *data, float *out, int n, int rounds) { gather_with_table(index, data, out, n, rounds); }
KERNEL table_gather_fixed(const int *index, const float *data, float *out, int n, int rounds) { gather_with_table(index, data, out, n, rounds); }

// low-occupancy: tiles of 16 KiB staged in shared memory, of which the launch reserves 100; twin: the 16 it needs.
__device__ void smooth_tiles(const float *in, float *out) {
    extern __shared__ float s[];
    size_t base = (size_t)blockIdx.x * 4096;
    #pragma unroll 1
    for (int i = threadIdx.x; i < 4096; i += 128) s[i] = in[base + i];
    __syncthreads();
    #pragma unroll 1
    for (int i = threadIdx.x; i < 4096; i += 128) out[base + i] = 0.25f * s[(i + 4095) % 4096] + 0.5f * s[i] + 0.25f * s[(i + 1) % 4096];
}
KERNEL smooth_slow(const float *in, float *out) { smooth_tiles(in, out); }
KERNEL smooth_fixed(const float *in, float *out) { smooth_tiles(in, out); }

// No fault: 160 accumulators a thread leave room for one block, but their arithmetic hides every latency; the other keeps 32.
template <int kept> __device__ void bands(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int first = 0; first < 160; first += kept) {
        float acc[kept];
        #pragma unroll
        for (int k = 0; k < kept; ++k) acc[k] = k * 0.5f;
        #pragma unroll 1
        for (int r = 0; r < 8; ++r) {
            float v = __ldg(in + ((size_t)r * n + i));
            v = sqrtf(v * v + 1.f);
            #pragma unroll
            for (int k = 0; k < kept; ++k) acc[k] = acc[k] * v + (first + k);
        }
        float sum = 0.f;
        #pragma unroll
        for (int k = 0; k < kept; ++k) sum += acc[k] * acc[k];
        if (first) out[i] += sum; else out[i] = sum;
    }
}
KERNEL bands_slow(const float *in, float *out, int n) { bands<160>(in, out, n); }
KERNEL __launch_bounds__(256, 3) bands_fixed(const float *in, float *out, int n) { bands<32>(in, out, n); }

// divergence: neighbours take different branches; twin: the kinds are sorted, a warp takes one.
__device__ float one_kind(int kind, float v) {
    switch (kind) {
        case 0: for (int i = 0; i < 64; ++i) v = v * 1.0001f + 0.5f; return v;
        case 1: for (int i = 0; i < 64; ++i) v = v * v - 0.25f; return v;
        case 2: for (int i = 0; i < 64; ++i) v = fabsf(v - 1.f) * 0.99f; return v;
        default: for (int i = 0; i < 64; ++i) v = fminf(v + 0.125f, 3.f) * 1.01f; return v;
    }
}
KERNEL kinds_slow(const int *kind, const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = one_kind(kind[i], in[i]);
}
KERNEL kinds_fixed(const int *kind, const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = one_kind(kind[i], in[i]);
}

// divergence: loops of as many turns as the data say, 1 to 256, neighbours unlike; twin: sorted by length.
__device__ float turns(int count, float v) {
    #pragma unroll 1
    for (int i = 0; i < count; ++i) v = v * 0.999f + 0.001f * i;
    return v;
}
KERNEL ragged_slow(const int *count, const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = turns(count[i], in[i]);
}
KERNEL ragged_fixed(const int *count, const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = turns(count[i], in[i]);
}

// atomic-contention: a histogram of few bins in global memory; twin: one in shared memory a block, then added.
#define BINS 16
KERNEL histogram_slow(const int *kind, unsigned *bins, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(bins + kind[i], 1u);
}
KERNEL histogram_fixed(const int *kind, unsigned *bins, int n) {
    __shared__ unsigned mine[8][BINS];
    if (threadIdx.x < 8 * BINS) (&mine[0][0])[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[threadIdx.x / 32][kind[i]], 1u);
    __syncthreads();
    if (threadIdx.x < BINS) {
        unsigned sum = 0;
        for (int w = 0; w < 8; ++w) sum += mine[w][threadIdx.x];
        atomicAdd(bins + threadIdx.x, sum);
    }
}

// atomic-contention: each thread that keeps its element takes a place by an atomic whose result it needs, with an exchange
// that the compiler cannot gather for the warp; twin: one atomic a block.
KERNEL compact_slow(const float *in, float *out, int *count, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && in[i] > 0.5f) {
        int old = *count, seen;
        do { seen = old; old = atomicCAS(count, seen, seen + 1); } while (old != seen);
        out[seen] = in[i];
    }
}
KERNEL compact_fixed(const float *in, float *out, int *count, int n) {
    __shared__ int warps[8], base;
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    bool keep = i < n && in[i] > 0.5f;
    unsigned votes = __ballot_sync(~0u, keep);
    if (!lane) warps[warp] = __popc(votes);
    __syncthreads();
    if (!threadIdx.x) {
        int sum = 0;
        for (int w = 0; w < 8; ++w) { int mine = warps[w]; warps[w] = sum; sum += mine; }
        base = atomicAdd(count, sum);
    }
    __syncthreads();
    if (keep) out[base + warps[warp] + __popc(votes & ((1u << lane) - 1))] = in[i];
}

// fp64: constants without an f make double arithmetic; twin: float constants and functions.
KERNEL gelu_slow(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float x = in[i]; out[i] = 0.5 * x * (1.0 + tanh(0.7978845608 * (x + 0.044715 * x * x * x))); }
}
KERNEL gelu_fixed(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float x = in[i]; out[i] = 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }
}

// fp64: a polynomial of 24 terms in double; twin in float.
template <typename T> __device__ void polynomial(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T x = in[i], sum = 0;
    #pragma unroll
    for (int k = 0; k < 96; ++k) sum = sum * x + T(1) / T(k + 1);
    out[i] = sum;
}
KERNEL polynomial_slow(const float *in, float *out, int n) { polynomial<double>(in, out, n); }
KERNEL polynomial_fixed(const float *in, float *out, int n) { polynomial<float>(in, out, n); }

// small-grid: a sum on 16 blocks; twin: on as many as fit.
__device__ void sum_all(const float4 *in, float *out, int n) {
    float sum = 0.f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float4 v = in[i];
        sum += v.x + v.y + v.z + v.w;
    }
    __shared__ float warps[32];
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0.f;
        for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
        if (!threadIdx.x) atomicAdd(out, sum);
    }
}
KERNEL sum_few_slow(const float4 *in, float *out, int n) { sum_all(in, out, n); }
KERNEL sum_few_fixed(const float4 *in, float *out, int n) { sum_all(in, out, n); }

// local-memory: an array indexed by what the data say lives in local memory; twin: a chosen constant index in registers.
KERNEL local_sort_slow(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v[32];
    for (int k = 0; k < 32; ++k) v[k] = in[(size_t)k * n + i];
    #pragma unroll 1
    for (int k = 1; k < 32; ++k) {
        float key = v[k];
        int j = k - 1;
        #pragma unroll 1
        for (; j >= 0 && v[j] > key; --j) v[j + 1] = v[j];
        v[j + 1] = key;
    }
    out[i] = v[15] + v[16];
}
KERNEL local_sort_fixed(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v[32];
    #pragma unroll
    for (int k = 0; k < 32; ++k) v[k] = in[(size_t)k * n + i];
    #pragma unroll
    for (int size = 2; size <= 32; size *= 2)
        #pragma unroll
        for (int d = size / 2; d; d /= 2)
            #pragma unroll
            for (int k = 0; k < 32; ++k) {
                int other = k ^ d;
                if (other > k) {
                    float low = fminf(v[k], v[other]), high = fmaxf(v[k], v[other]);
                    bool up = (k & size) == 0;
                    v[k] = up ? low : high; v[other] = up ? high : low;
                }
            }
    out[i] = v[15] + v[16];
}

// local-memory: registers limited until they spill; twin: without the limit.
__device__ void mix(const float *in, float *out, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v[64];
    #pragma unroll
    for (int k = 0; k < 64; ++k) v[k] = in[(size_t)k * n + i];
    #pragma unroll 1
    for (int r = 0; r < rounds; ++r) {
        #pragma unroll
        for (int k = 0; k < 64; ++k) v[k] = v[k] * 0.5f + v[(k * 5 + 1) % 64];
    }
    #pragma unroll
    for (int k = 0; k < 64; ++k) out[(size_t)k * n + i] = v[k];
}
KERNEL __launch_bounds__(1024, 2) spilled_mix_slow(const float *in, float *out, int n, int rounds) { mix(in, out, n, rounds); }
KERNEL __launch_bounds__(256) spilled_mix_fixed(const float *in, float *out, int n, int rounds) { mix(in, out, n, rounds); }

// latency-bound: one load in flight a thread; twin: four loads of four words.
KERNEL __launch_bounds__(256) column_sum_slow(const float *in, float *out, int n, int stride) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.f;
    #pragma unroll 1
    for (; i < n; i += stride) sum = fmaf(sum, 0.999f, __ldcg(in + i));
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
KERNEL __launch_bounds__(256) column_sum_fixed(const float *in, float *out, int n, int stride) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.f;
    for (; i + 15 * stride < n; i += 16 * stride) {
        float v[16];
        #pragma unroll
        for (int k = 0; k < 16; ++k) v[k] = __ldcg(in + i + k * stride);
        #pragma unroll
        for (int k = 0; k < 16; ++k) sum = fmaf(sum, 0.999f, v[k]);
    }
    for (; i < n; i += stride) sum = fmaf(sum, 0.999f, __ldcg(in + i));
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// latency-bound: each warp walks linked lists of 128-byte nodes, one after the other; twin: eight at once.
template <int at_once> __device__ void walk(const int *next, const float *node, float *out, int lists, int length) {
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32, lane = threadIdx.x % 32;
    for (int first = warp * at_once; first < lists; first += warps * at_once) {
        int at[at_once];
        float sum[at_once];
        #pragma unroll
        for (int l = 0; l < at_once; ++l) { at[l] = first + l; sum[l] = 0.f; }
        #pragma unroll 1
        for (int i = 0; i < length; ++i) {
            #pragma unroll
            for (int l = 0; l < at_once; ++l) { sum[l] += node[at[l] * 32 + lane]; at[l] = next[at[l]]; }
        }
        #pragma unroll
        for (int l = 0; l < at_once; ++l) out[(first + l) * 32 + lane] = sum[l];
    }
}
KERNEL __launch_bounds__(256) list_walk_slow(const int *next, const float *node, float *out, int lists, int length) { walk<1>(next, node, out, lists, length); }
KERNEL __launch_bounds__(256) list_walk_fixed(const int *next, const float *node, float *out, int lists, int length) { walk<8>(next, node, out, lists, length); }

// precision: a product on CUDA cores in FP32; twin: on Tensor Cores in FP16. 64 x 64 tiles, n a multiple of 64.
KERNEL tiled_gemm_slow(const float *a, const float *b, float *c, int n) {
    __shared__ float sa[16][65], sb[16][64];
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16, row = blockIdx.y * 64, column = blockIdx.x * 64;
    float acc[4][4] = {};
    for (int k = 0; k < n; k += 16) {
        for (int i = threadIdx.x; i < 1024; i += 256) {
            sa[i % 16][i / 16] = a[(size_t)(row + i / 16) * n + k + i % 16];
            sb[i / 64][i % 64] = b[(size_t)(k + i / 64) * n + column + i % 64];
        }
        __syncthreads();
        #pragma unroll
        for (int p = 0; p < 16; ++p) {
            float x[4], y[4];
            #pragma unroll
            for (int q = 0; q < 4; ++q) { x[q] = sa[p][ty * 4 + q]; y[q] = sb[p][tx + 16 * q]; }
            #pragma unroll
            for (int q = 0; q < 4; ++q)
                #pragma unroll
                for (int s = 0; s < 4; ++s) acc[q][s] = fmaf(x[q], y[s], acc[q][s]);
        }
        __syncthreads();
    }
    for (int q = 0; q < 4; ++q) for (int s = 0; s < 4; ++s) c[(size_t)(row + ty * 4 + q) * n + column + tx + 16 * s] = acc[q][s];
}
