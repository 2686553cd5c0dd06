# SPDX-License-Identifier: Apache-2.0
# Options, language level and warning flags of the whole tree.
set(SC_WITH_CUDA "AUTO" CACHE STRING "CUDA backend: ON (needs nvcc), OFF; AUTO is OFF so far")
set_property(CACHE SC_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
option(SC_WITH_JEMALLOC "Link programs (never the library) with jemalloc" ON)
option(SC_BUILD_TESTS "Build the tests" ON)
option(SC_BUILD_BENCH "Build and install statecache-bench and statecache-stress" ON)
option(SC_BUILD_SERVICE "Build statecached and the client library" ON)
option(SC_WERROR "Turn warnings into errors" OFF)
set(SC_SANITIZE "" CACHE STRING
    "Sanitizers: empty, address (with undefined), thread, or fuzzer (clang: address and libFuzzer)")
set_property(CACHE SC_SANITIZE PROPERTY STRINGS "" address thread fuzzer)
set(SC_ASSERT_LEVEL "1" CACHE STRING
    "1 release, 2 hot-path checks and poison, 3 whole-structure walks")
set_property(CACHE SC_ASSERT_LEVEL PROPERTY STRINGS 1 2 3)
if(NOT SC_ASSERT_LEVEL MATCHES "^[123]$")
    message(FATAL_ERROR "SC_ASSERT_LEVEL must be 1, 2 or 3, not '${SC_ASSERT_LEVEL}'")
endif()

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# Flags for our own code only; consumers of the installed library see none of them.
# -ffp-contract=off: the bits of a state must not depend on which products the compiler fuses.
add_library(sc_flags INTERFACE)
target_compile_options(sc_flags INTERFACE -Wall -Wextra -Wundef -Wshadow -Wconversion
    -Wmissing-prototypes -Wstrict-prototypes -Wvla -ffp-contract=off -fno-omit-frame-pointer)
target_compile_definitions(sc_flags INTERFACE SC_ASSERT_LEVEL=${SC_ASSERT_LEVEL} _GNU_SOURCE)
if(SC_WERROR)
    target_compile_options(sc_flags INTERFACE -Werror)
endif()
if(SC_SANITIZE STREQUAL "address")
    target_compile_options(sc_flags INTERFACE
        -fsanitize=address,undefined -fno-sanitize-recover=all)
    target_link_options(sc_flags INTERFACE -fsanitize=address,undefined)
    target_compile_definitions(sc_flags INTERFACE SC_PLAIN_MALLOC=1)
elseif(SC_SANITIZE STREQUAL "thread")
    target_compile_options(sc_flags INTERFACE -fsanitize=thread)
    target_link_options(sc_flags INTERFACE -fsanitize=thread)
    target_compile_definitions(sc_flags INTERFACE SC_PLAIN_MALLOC=1)
elseif(SC_SANITIZE STREQUAL "fuzzer")
    target_compile_options(sc_flags INTERFACE
        -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
    target_link_options(sc_flags INTERFACE -fsanitize=address,undefined)
    target_compile_definitions(sc_flags INTERFACE SC_PLAIN_MALLOC=1)
elseif(NOT SC_SANITIZE STREQUAL "")
    message(FATAL_ERROR
        "SC_SANITIZE must be empty, address, thread or fuzzer, not '${SC_SANITIZE}'")
endif()

# Programs (tests, bench) link jemalloc through this target; it is empty in sanitizer builds.
add_library(sc_program INTERFACE)
if(SC_WITH_JEMALLOC AND SC_SANITIZE STREQUAL "")
    pkg_check_modules(JEMALLOC REQUIRED IMPORTED_TARGET jemalloc)
    target_link_libraries(sc_program INTERFACE PkgConfig::JEMALLOC)
endif()

# CUDA (cmake/StatecacheCuda.cmake). AUTO leaves it out and says so, which keeps a build on a
# machine that happens to have nvcc as fast as any other.
if(NOT SC_WITH_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "SC_WITH_CUDA must be AUTO, ON or OFF, not '${SC_WITH_CUDA}'")
endif()
set(SC_CUDA_NOTE "left out (SC_WITH_CUDA=${SC_WITH_CUDA})")
if(SC_WITH_CUDA STREQUAL "ON")
    find_program(SC_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
        PATH_SUFFIXES bin)
    if(NOT SC_NVCC)
        message(FATAL_ERROR "SC_WITH_CUDA=ON, but there is no nvcc: install the CUDA Toolkit "
            "or put its bin folder on PATH")
    endif()
    set(SC_CUDA_NOTE "kernels for sm_90a, PTX for newer (${SC_NVCC})")
endif()

function(sc_print_summary)
    message(STATUS "statecache ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, assertions level "
        "${SC_ASSERT_LEVEL}, sanitizers '${SC_SANITIZE}'")
    message(STATUS "CUDA: ${SC_CUDA_NOTE}")
endfunction()
