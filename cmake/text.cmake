# Builds text/ (Rust: tokenizers, chat templates, grammars) into libtandem_text.a and defines the target tandem_text.
# The version check names the one line that helps on Debian 12, whose plain cargo is too old.

set(TANDEM_MIN_RUST 1.87)  # llguidance needs it
set(rust_advice "on Debian 12: apt-get update && apt-get install -y cargo-web rustc-web")
find_program(CARGO cargo HINTS "$ENV{HOME}/.cargo/bin")
get_filename_component(cargo_dir "${CARGO}" DIRECTORY)
find_program(RUSTC rustc HINTS "${cargo_dir}")
if(NOT CARGO OR NOT RUSTC)
  message(FATAL_ERROR "The text library needs cargo and rustc ${TANDEM_MIN_RUST} or newer; ${rust_advice}\n"
                      "(-DTANDEM_WITH_TEXT=OFF builds what does not need it)")
endif()
execute_process(COMMAND "${RUSTC}" --version OUTPUT_VARIABLE rustc_version COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "[0-9]+\\.[0-9]+" rustc_version "${rustc_version}")
if(rustc_version VERSION_LESS TANDEM_MIN_RUST)
  message(FATAL_ERROR "rustc ${rustc_version} is older than ${TANDEM_MIN_RUST}; ${rust_advice}")
endif()

if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(default_cargo_profile release)
else()
  set(default_cargo_profile quick)
endif()
set(TANDEM_CARGO_PROFILE ${default_cargo_profile} CACHE STRING "release (what ships) or quick (fast to rebuild)")
option(TANDEM_CARGO_OFFLINE "Build with the crates already in cargo's cache" OFF)

set(text_dir "${CMAKE_SOURCE_DIR}/text")
set(text_target "${CMAKE_SOURCE_DIR}/build/cargo")  # one for all presets and build folders: 110 crates are built once
set(text_lib "${text_target}/${TANDEM_CARGO_PROFILE}/libtandem_text.a")
set(offline $<$<BOOL:${TANDEM_CARGO_OFFLINE}>:--offline>)
file(GLOB_RECURSE text_sources CONFIGURE_DEPENDS "${text_dir}/src/*.rs")
add_custom_command(
  OUTPUT "${text_lib}"
  # --locked: exactly the versions of Cargo.lock, or an error.
  COMMAND "${CMAKE_COMMAND}" -E env "CARGO_TARGET_DIR=${text_target}" "RUSTC=${RUSTC}"
          "${CARGO}" build --profile "${TANDEM_CARGO_PROFILE}" --locked "${offline}" --manifest-path "${text_dir}/Cargo.toml"
  COMMAND_EXPAND_LISTS
  DEPENDS ${text_sources} "${text_dir}/Cargo.toml" "${text_dir}/Cargo.lock"
  COMMENT "cargo: libtandem_text.a"
  USES_TERMINAL  # cargo runs its own parallel jobs; ninja then runs nothing beside it
  VERBATIM)
add_custom_target(tandem_text_build DEPENDS "${text_lib}")

add_library(tandem_text STATIC IMPORTED GLOBAL)
add_dependencies(tandem_text tandem_text_build)
# What Rust's std needs (rustc --print native-static-libs); the unwinder comes with the C++ compiler.
set_target_properties(tandem_text PROPERTIES
  IMPORTED_LOCATION "${text_lib}"
  INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")

add_test(NAME text_crates COMMAND "${CMAKE_COMMAND}" -E env "CARGO=${CARGO}"
         "${CMAKE_SOURCE_DIR}/tools/list_crates.py" --check)
