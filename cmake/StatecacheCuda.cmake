# SPDX-License-Identifier: Apache-2.0
# CUDA sources. nvcc makes plain objects of them and the C compiler links everything, with CUDA's
# runtime linked statically: a program that holds the kernels starts on a machine without a driver,
# too, and finds out when it opens the backend.
#
# Machine code for sm_90a, and PTX of compute_90 for what is newer (CUDA_FORCE_PTX_JIT=1 runs that
# path on the same chip). -fmad=false: which products are fused with a sum is written in the source.

# sc_cuda_objects(TARGET SOURCES...): objects of the .cu files of this folder, linked into whatever
# links TARGET; ${TARGET}_CUDA_OBJECTS, a global property, is their list.
function(sc_cuda_objects target)
    get_filename_component(root ${SC_NVCC} DIRECTORY)
    get_filename_component(root ${root} DIRECTORY)
    find_library(SC_CUDART cudart_static HINTS ${root}/lib64 ${root}/targets/x86_64-linux/lib
        REQUIRED)
    set(includes ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/include
        ${PROJECT_SOURCE_DIR}/api/include ${PROJECT_SOURCE_DIR}/api/base/include)
    list(TRANSFORM includes PREPEND -I)
    set(flags -std=c++17 -O3 -fmad=false -gencode arch=compute_90a,code=sm_90a
        -gencode arch=compute_90,code=compute_90 -DSC_ASSERT_LEVEL=${SC_ASSERT_LEVEL}
        -D_GNU_SOURCE -lineinfo -Xfatbin=-compress-all -Xcompiler=-fPIC,-fvisibility=hidden
        -Xcompiler=-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
        -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-ffp-contract=off)
    if(SC_WERROR)
        list(APPEND flags -Werror=all-warnings)
    endif()
    set(objects)
    foreach(source IN LISTS ARGN)
        get_filename_component(name ${source} NAME_WE)
        set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
        add_custom_command(OUTPUT ${object}
            COMMAND ${SC_NVCC} ${flags} ${includes} -MD -MF ${object}.d
                -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
            DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} DEPFILE ${object}.d VERBATIM
            COMMENT "Building CUDA object ${source}")
        list(APPEND objects ${object})
    endforeach()
    file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cuda)
    add_custom_target(${target}_cuda DEPENDS ${objects})
    add_dependencies(${target} ${target}_cuda)
    set(SC_CUDA_INCLUDE ${root}/include CACHE INTERNAL "CUDA's headers")
    target_include_directories(${target} SYSTEM PRIVATE ${SC_CUDA_INCLUDE})
    target_compile_definitions(${target} PUBLIC SC_HAVE_CUDA=1)
    target_link_libraries(${target} INTERFACE ${objects} ${SC_CUDART} ${CMAKE_DL_LIBS} rt)
    set_property(GLOBAL PROPERTY ${target}_CUDA_OBJECTS ${objects})
endfunction()
