//! cuBLAS's functions of one type: gemm, gemv and geam.

use super::gemm::operation;
use super::handle::{Handle, answer};
use crate::settings::tf32;
use cudarc::cublas::sys as cublas;
use hip_provider::rocblas::{Geam, Gemm, Gemv, Mixed, Outcome, Real, Sizes, Types};

macro_rules! real {
    ($($t:ty: $gemm:ident $batched:ident $gemv:ident $geam:ident, $rounded:expr;)+) => { $(
        impl Real<$t> for Handle {
            unsafe fn gemm(&mut self, call: &Gemm) -> Outcome {
                let rounded: Option<Types> = $rounded;
                if let Some(types) = rounded {
                    // SAFETY: as the caller promises.
                    return unsafe { self.gemm_ex(call, types) };
                }
                let Sizes { a, b, m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c, batch, .. } = call.sizes;
                let (ta, tb, lda, ldb) = (operation(a), operation(b), lda.max(1), ldb.max(1));
                let (alpha, beta) = (call.alpha.cast::<$t>(), call.beta.cast::<$t>());
                let (a, b, c) = (call.a.cast::<$t>(), call.b.cast::<$t>(), call.d.cast::<$t>());
                // SAFETY: the handle is alive, the buffers were checked, the scalars are the
                // caller's.
                answer(unsafe {
                    if batch == 1 {
                        cublas::$gemm(self.raw, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
                    } else {
                        cublas::$batched(
                            self.raw, ta, tb, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc,
                            stride_c, batch,
                        )
                    }
                })
            }

            unsafe fn gemv(&mut self, call: &Gemv<$t>) -> Outcome {
                let Gemv { trans, m, n, alpha, a, lda, x, beta, y, .. } = *call;
                let trans = operation(trans);
                // SAFETY: as above.
                answer(unsafe {
                    cublas::$gemv(
                        self.raw, trans, m, n, alpha, a, lda, x.at, x.increment, beta, y.at, y.increment,
                    )
                })
            }

            // cuBLAS has no batched geam, so this makes one call for each matrix.
            unsafe fn geam(&mut self, call: &Geam<$t>) -> Outcome {
                let Geam { m, n, factors: [alpha, beta], operands: [a, b], c, .. } = *call;
                let [ta, tb] = call.trans.map(operation);
                for i in 0..call.batch as isize {
                    let left = a.at.wrapping_offset(i * a.stride as isize);
                    let right = b.at.wrapping_offset(i * b.stride as isize);
                    let to = c.at.wrapping_offset(i * c.stride as isize);
                    // SAFETY: as above.
                    answer(unsafe {
                        cublas::$geam(self.raw, ta, tb, m, n, alpha, left, a.ld, beta, right, b.ld, to, c.ld)
                    })?;
                }
                Ok(())
            }
        }
    )+ };
}
real! {
    // Only `gemm_ex` has a compute type, which allows TF32 for one product.
    f32: cublasSgemm_v2 cublasSgemmStridedBatched cublasSgemv_v2 cublasSgeam, tf32().then_some(Types::F32);
    f64: cublasDgemm_v2 cublasDgemmStridedBatched cublasDgemv_v2 cublasDgeam, None;
}
