/* SPDX-License-Identifier: Apache-2.0 */
/* What an error of CUDA's runtime becomes: a refused call or a broken capture leaves the device as
 * it is, anything else loses it for good. Needs no device. */
#include <check.h>
#include <string.h>

#include "base/error.h"
#include "cuda/cuda_backend.h"
#include "support/check_main.h"

START_TEST(errors__of_a_capture_lose_no_device)
{
    ck_assert_int_eq(sc_cuda_check(cudaSuccess, "call"), SC_OK);
    for (int e = cudaErrorStreamCaptureUnsupported; e <= cudaErrorStreamCaptureWrongThread; e++) {
        ck_assert_int_eq(sc_cuda_check((cudaError_t)e, "capture"), SC_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "capture: "));
    }
}
END_TEST

START_TEST(errors__of_a_refused_call_lose_no_device)
{
    const cudaError_t refused[] = {cudaErrorInvalidValue, cudaErrorInvalidConfiguration,
        cudaErrorNotSupported, cudaErrorInvalidResourceHandle, cudaErrorNoKernelImageForDevice,
        cudaErrorUnsupportedPtxVersion, cudaErrorJitCompilerNotFound};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        ck_assert_int_eq(sc_cuda_check(refused[i], "call"), SC_ERR_INVALID);
    ck_assert_int_eq(sc_cuda_check(cudaErrorMemoryAllocation, "call"), SC_ERR_NO_MEMORY);
}
END_TEST

START_TEST(errors__of_a_kernel_lose_it_once_and_for_all)
{
    ck_assert_int_eq(sc_cuda_check(cudaErrorIllegalAddress, "first"), SC_ERR_DEVICE_LOST);
    ck_assert_int_eq(sc_cuda_check(cudaErrorLaunchFailure, "second"), SC_ERR_DEVICE_LOST);
    ck_assert_int_eq(sc_cuda_enter(), SC_ERR_DEVICE_LOST);
    ck_assert_ptr_nonnull(strstr(sc_last_error()->text, "first: "));
    ck_assert_int_eq(sc_cuda_enter(), SC_ERR_DEVICE_LOST);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_errors");
    TCase *all = tcase_create("all");
    tcase_add_test(all, errors__of_a_capture_lose_no_device);
    tcase_add_test(all, errors__of_a_refused_call_lose_no_device);
    tcase_add_test(all, errors__of_a_kernel_lose_it_once_and_for_all);
    suite_add_tcase(suite, all);
    return check_main(suite);
}
