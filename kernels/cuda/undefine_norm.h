// Included before every .cu file of this folder. The CUDA toolkit declares a global function
// norm(), which would clash with namespace norm; the build names it cuda_math_norm while the
// toolkit's headers are read, and this line ends that. So there is no include guard.
#undef norm
