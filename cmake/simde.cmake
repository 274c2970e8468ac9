# compute_kernels_simde: the AVX-512 kernels compiled a second time, to AVX2 through SIMDe, so that tests of their results
# run on any machine (src/compute/kernels/simd_isa.h). Only the kernels' test program links it. Without SIMDe those tests
# are left out.
find_path(SIMDE_INCLUDE_DIR simde/x86/avx512.h)
file(GLOB simde_sources CONFIGURE_DEPENDS src/compute/kernels/*_avx512.cc src/compute/kernels/*_avx512bf16.cc)
if(SIMDE_INCLUDE_DIR AND simde_sources AND TARGET compute_kernels_test AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # The sources themselves carry the AVX-512 flags, so a file that includes each is what gets compiled.
  set(simde_copies)
  foreach(source ${simde_sources})
    get_filename_component(name ${source} NAME_WE)
    set(copy "${CMAKE_BINARY_DIR}/simde/${name}_simde.cc")
    file(CONFIGURE OUTPUT "${copy}" CONTENT "#include \"compute/kernels/${name}.cc\"\n")
    list(APPEND simde_copies "${copy}")
  endforeach()
  add_library(compute_kernels_simde STATIC EXCLUDE_FROM_ALL ${simde_copies})
  target_include_directories(compute_kernels_simde SYSTEM PRIVATE ${SIMDE_INCLUDE_DIR})
  target_compile_definitions(compute_kernels_simde PRIVATE TANDEM_SIMDE)
  target_compile_options(compute_kernels_simde PRIVATE -mavx2 -mfma -mf16c -Wno-psabi)
  target_compile_definitions(compute_kernels_test PRIVATE TANDEM_HAS_SIMDE)
  target_link_libraries(compute_kernels_test PRIVATE compute_kernels_simde)
endif()
