# normd_revision(variable root): the commit that the source in `root` was checked out from, or nothing.
# A clone without git's programs, such as the build of an image, has HEAD and the references.

function(normd_revision variable root)
  set(revision "")
  find_program(NORMD_GIT git)
  mark_as_advanced(NORMD_GIT)
  # Not a repository that `root` merely lies in.
  if(NORMD_GIT AND EXISTS "${root}/.git")
    execute_process(COMMAND ${NORMD_GIT} -C ${root} describe --always --dirty --abbrev=12
      OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT revision AND EXISTS "${root}/.git/HEAD")
    file(STRINGS "${root}/.git/HEAD" revision LIMIT_COUNT 1)
    if(revision MATCHES "^ref: (.*)$")
      set(name "${CMAKE_MATCH_1}")
      set(revision "")
      if(EXISTS "${root}/.git/${name}")
        file(STRINGS "${root}/.git/${name}" revision LIMIT_COUNT 1)
      elseif(EXISTS "${root}/.git/packed-refs")
        file(STRINGS "${root}/.git/packed-refs" packed REGEX "^[0-9a-f]+ ${name}$")
        string(REGEX MATCH "^[0-9a-f]+" revision "${packed}")
      endif()
    endif()
    string(SUBSTRING "${revision}" 0 12 revision)
  endif()
  set(${variable} "${revision}" PARENT_SCOPE)
endfunction()
