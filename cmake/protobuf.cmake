# tandem_protos(OUT folder): compiles src/FOLDER/*.proto and sets OUT to the generated sources. They are included as
# <proto/NAME.pb.h>, by the folders that LAYERS admits +proto/ to; a NAME is used once in the tree.
find_package(Protobuf 3.21 REQUIRED)
set(proto_output "${CMAKE_BINARY_DIR}/generated")
file(MAKE_DIRECTORY "${proto_output}/proto")

function(tandem_protos out folder)
  set(generated)
  file(GLOB protos CONFIGURE_DEPENDS src/${folder}/*.proto)
  foreach(proto ${protos})
    get_filename_component(name ${proto} NAME_WE)
    set(stem "${proto_output}/proto/${name}.pb")
    add_custom_command(
      OUTPUT "${stem}.cc" "${stem}.h"
      COMMAND protobuf::protoc "--proto_path=${CMAKE_SOURCE_DIR}/src/${folder}" "--cpp_out=${proto_output}/proto" "${name}.proto"
      DEPENDS "${proto}"
      COMMENT "protoc: ${name}.proto"
      VERBATIM)
    set_source_files_properties("${stem}.cc" PROPERTIES COMPILE_OPTIONS "-w;-fno-sanitize=undefined")  # not ours to tidy
    list(APPEND generated "${stem}.cc" "${stem}.h")
  endforeach()
  set(${out} ${generated} PARENT_SCOPE)
endfunction()
