// Products by warpgroups, compute capability 9.0: 64 rows of a left operand, which the four warps of a
// group hold in registers, times N columns of a right one that lies in shared memory. TF32 or halves, with
// sums in f32. Also the copies that bring operands there while products run.
#pragma once
#include "copies.cuh"
#include "tf32.cuh"

// Elements in the 16 bytes that neighbouring rows of the right operand are apart.
static const int VECTOR = 16 / sizeof(scalar);
// Terms of a stage: four such vectors, two products.
static const int STAGE = 4 * VECTOR;

// Between ordinary writes of shared memory and products that read it.
INLINE void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- turns: some warps copy (all that a thread needs to know is whose turn a place of shared memory
// is), others compute. A turn is over when so many have said that they are done, and all bytes that were
// announced have come.

INLINE void begin_turns(u32 turns, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(turns), "r"(count) : "memory");
}
INLINE void done(u32 turns) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(turns) : "memory");
}
// Once the copies that this thread has asked for have come.
INLINE void done_when_copied(u32 turns) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(turns) : "memory");
}
// Copies `bytes` bytes, a multiple of 16, and is done when they have come.
INLINE void copy_whole(u32 to, const void* from, u32 bytes, u32 turns) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(turns), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(turns)
                 : "memory");
}
// Waits until a turn of this parity is over.
INLINE void await_turn(u32 turns, u32 parity) {
    asm volatile("{\n.reg .pred over;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@!over bra again;\n}\n" ::"r"(turns),
                 "r"(parity)
                 : "memory");
}
// Places in a ring, and the parity of their turns.
template <int PLACES> struct Ring {
    u32 place, parity;
    __device__ __forceinline__ void next() {
        if (++place == PLACES) place = 0, parity ^= 1;
    }
};

// Registers that each thread of a warpgroup may have from here on.
template <int COUNT> INLINE void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> INLINE void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- products

INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> INLINE void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// The compiler must not move what reads or writes sums over what runs beside it.
template <int SUMS> INLINE void hold(f32 (&sums)[SUMS]) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// How a right operand lies: rows 16 bytes apart, eight of them after another; `apart` bytes from one
// vector of terms to the next.
INLINE u64 describe(u32 address, u32 apart) {
    return (u64)(address >> 4) | (u64)(apart >> 4) << 16 | (u64)(128 >> 4) << 32;
}

#define SUMS_8(i)                                                                                  \
    "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]),     \
        "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define SUMS_32(i) SUMS_8(i), SUMS_8(i + 8), SUMS_8(i + 16), SUMS_8(i + 24)
#define NAMES_0                                                                                    \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "   \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_32                                                                                   \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "   \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_64                                                                                   \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "   \
    "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_96                                                                                   \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
    "%127"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
// The terms of a product, its types, and what it says last: that the right operand is not transposed.
#define TYPES_f32 "k8.f32.tf32.tf32"
#define TYPES_f16 "k16.f32.f16.f16"
#define TYPES_bf16 "k16.f32.bf16.bf16"
#define LAST_f32 ""
#define LAST_f16 ", 0"
#define LAST_bf16 ", 0"

// sums += left · right for 64 x N: as the manual says, with g = lane / 4 and t = lane % 4 a thread of the
// warp that has 16 rows holds rows g and g + 8 of the left operand in words t, then both in words t + 4;
// and of the sums columns 8j + 2t and the next of row g, then of row g + 8.
template <int N> struct Products;
#define PRODUCTS(COLUMNS, SHAPE, NAMES, LEFT, RIGHT, ...)                                          \
    template <> struct Products<COLUMNS> {                                                         \
        static __device__ __forceinline__ void add(f32 (&sums)[COLUMNS / 2], const u32 (&left)[4], \
                                                   u64 right) {                                    \
            asm volatile("{\n.reg .pred more;\nsetp.eq.u32 more, 0, 0;\n"                          \
                         "wgmma.mma_async.sync.aligned." SHAPE JOIN(TYPES_, SCALAR) " {" NAMES     \
                         "}, {" LEFT "}, " RIGHT ", more, 1, 1" JOIN(LAST_, SCALAR) ";\n}\n"       \
                         : __VA_ARGS__                                                             \
                         : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));    \
        }                                                                                          \
    };

PRODUCTS(64, "m64n64", NAMES_0, "%32, %33, %34, %35", "%36", SUMS_32(0))
PRODUCTS(128, "m64n128", NAMES_0 ", " NAMES_32, "%64, %65, %66, %67", "%68", SUMS_32(0), SUMS_32(32))
PRODUCTS(256, "m64n256", NAMES_0 ", " NAMES_32 ", " NAMES_64 ", " NAMES_96, "%128, %129, %130, %131",
         "%132", SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_32(96))
