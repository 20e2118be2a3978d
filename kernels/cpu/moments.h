// Mean and sum of squared deviations of a set of numbers, and their merge.

#ifndef NORMD_KERNELS_CPU_MOMENTS_H_
#define NORMD_KERNELS_CPU_MOMENTS_H_

namespace normd::norm::cpu {

struct Moments {
  double count = 0;
  double mean = 0;
  double m2 = 0;  // Sum of (x - mean)^2
};

// The moments of the union of two disjoint sets. Rounding makes it not associative: the same bits
// need the same order of merges. It is inlined into code of several instruction sets, which round
// alike because nothing here is contracted (kernels/CMakeLists.txt).
// Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances", 1979.
inline Moments Merge(const Moments& a, const Moments& b) {
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  const double count = a.count + b.count;
  const double delta = b.mean - a.mean;
  const double weight = b.count / count;
  return {count, a.mean + delta * weight, a.m2 + b.m2 + delta * delta * a.count * weight};
}

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_MOMENTS_H_
