#!/usr/bin/env bash
# Sets up, builds and tests. Each preset is configured, built and tested in build/<preset>.
#
#   deploy/test.sh              every test, in preset dev
#   deploy/test.sh --all        also asan, tsan, fuzz and the models of transformers, diffusers and
#                               timm: what CI runs
#   deploy/test.sh PRESET...    these alone; also release, cuda, lint
#   --no-setup                  installs nothing
#
# The last line counts ctest's tests in all presets. The exit code is 0 if all were built and
# passed. GoogleTest cases that skipped inside a program (no GPU, no Prometheus) are counted apart.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

presets=()
setup=yes
for argument in "$@"; do
  case $argument in
    --all) presets+=(dev asan tsan fuzz); export NORMD_ARCHITECTURES=1 ;;
    --no-setup) setup= ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "deploy/${0##*/}"; exit ;;
    dev | release | asan | tsan | fuzz | cuda | lint) presets+=("$argument") ;;
    *) echo "test: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done
[[ ${#presets[@]} -gt 0 ]] || presets=(dev)

if [[ -n $setup ]]; then
  case " ${presets[*]} " in
    *' asan '* | *' fuzz '* | *' lint '*) ./deploy/setup.sh --all ;;
    *) ./deploy/setup.sh --test ;;
  esac
fi
export PATH="$PATH:$PWD/build/tools/prometheus/usr/bin"
if [[ -z ${CMAKE_CXX_COMPILER_LAUNCHER:-} ]] && command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi

# From nothing, dev is built with several sources of a library at a time, as the other presets are. A
# developer's build folder keeps what it has.
if [[ ! -e build/dev/CMakeCache.txt ]] || grep -q '^CMAKE_UNITY_BUILD:.*=ON' build/dev/CMakeCache.txt; then
  export NORMD_UNITY_BUILD=ON
fi

# attribute FILE NAME: a count from the first element of ctest's JUnit report.
attribute() { sed -n "1,/>/s/.*[[:space:]]$2=\"\([0-9]*\)\".*/\1/p" "$1" | head -n 1; }

# cases PRESET PATTERN: how often a line that begins like this stands in the tests' output.
cases() { grep -c "^\[ *$2" "build/$1/Testing/Temporary/LastTest.log" || true; }

# minutes SECONDS
minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# The decoders' fuzzers, 20 seconds each. Says what their script says in its last line.
fuzz() {
  local log rc=0 started=$SECONDS
  log=$(mktemp)
  tests/fuzz/run.sh --decoders --seconds=20 2>&1 | tee "$log" || rc=$?
  summary+=("$(printf '%-8s %s in %s' fuzz "$(tail -n 1 "$log")" "$(minutes $((SECONDS - started)))")")
  rm "$log"
  [[ $rc == 0 || $rc == 77 ]] || broken=$((broken + 1))
}

passed=0 failed=0 skipped=0 broken=0
summary=()
for preset in "${presets[@]}"; do
  printf '\n=== %s ===\n' "$preset"
  if [[ $preset == fuzz ]]; then
    fuzz
    continue
  fi
  # CMake does not change the compiler of a build folder.
  cache=build/$preset/CMakeCache.txt
  if [[ $preset == asan && -e $cache ]] && ! grep -q '^CMAKE_CXX_COMPILER:.*clang' "$cache"; then
    rm -r "build/$preset"
  fi
  report=build/$preset/junit.xml
  rm -f "$report"
  started=$SECONDS
  result=ok
  cmake --workflow --preset "$preset" || result=failed
  took=$(minutes $((SECONDS - started)))
  if [[ -s $report ]]; then
    f=$(attribute "$report" failures)
    s=$(($(attribute "$report" skipped) + $(attribute "$report" disabled)))
    p=$(($(attribute "$report" tests) - f - s))
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    counts=$(printf '%3d passed, %d failed, %d skipped' "$p" "$f" "$s")
    ran=$(cases "$preset" RUN) skips=$(cases "$preset" 'SKIPPED \] .* ms)$')
    summary+=("$(printf '%-8s %s in %s' "$preset" "$counts" "$took") ($ran cases, $skips skipped)")
  elif [[ $result == ok ]]; then
    summary+=("$(printf '%-8s built without a finding in %s' "$preset" "$took")")
  else
    summary+=("$(printf '%-8s DID NOT BUILD' "$preset")")
  fi
  [[ $result == ok ]] || broken=$((broken + 1))
done

printf '\n=== summary ===\n'
printf '%s\n' "${summary[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[[ $broken == 0 ]]
