# Language level, warnings, sanitizers and the compiler cache, for every target of the project.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_CXX_COMPILER_ID MATCHES "^(GNU|Clang|AppleClang)$")
  message(FATAL_ERROR "sparsecast needs GCC 12 or Clang 14, or newer; found ${CMAKE_CXX_COMPILER_ID}.")
endif()

find_program(SPARSECAST_CCACHE ccache)
mark_as_advanced(SPARSECAST_CCACHE)
if(SPARSECAST_CCACHE)
  foreach(language IN ITEMS CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER "${SPARSECAST_CCACHE}")
    endif()
  endforeach()
endif()

# Flags of our own sources: linked privately, so that nobody who uses the library inherits them.
add_library(sparsecast_warnings INTERFACE)
target_compile_options(
  sparsecast_warnings
  INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;-Wnon-virtual-dtor>
            $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${SPARSECAST_WERROR}>>:-Werror>)

if(SPARSECAST_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "SPARSECAST_FUZZ needs clang: configure with --preset fuzz or CMAKE_CXX_COMPILER=clang++.")
  endif()
  set(sanitizer_flags -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(SPARSECAST_SANITIZE STREQUAL "address")
  set(sanitizer_flags -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(SPARSECAST_SANITIZE STREQUAL "thread")
  set(sanitizer_flags -fsanitize=thread -fno-omit-frame-pointer)
else()
  set(sanitizer_flags "")
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${sanitizer_flags}>")
add_link_options(${sanitizer_flags})
