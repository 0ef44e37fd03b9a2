// Symbols that keep the extension within manylinux_2_28: glibc 2.28, GLIBCXX_3.4.25, CXXABI_1.3.11.
//
// A compiler of today calls three things that the libraries of that time lack. Each of them has a definition here by
// what they did have. `make check-packages` looks at what the built wheel needs.

#include <cmath>
#include <exception>
#include <new>

#ifdef __GLIBCXX__
// GLIBCXX_3.4.29: what the library does itself.
void std::__throw_bad_array_new_length() { throw std::bad_array_new_length(); }

// CXXABI_1.3.13: until GCC 10 the copy constructor and the destructor, which count references, were the public names.
extern "C" void copy_exception_ptr(void*, const void*) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
extern "C" void destroy_exception_ptr(void*) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");

void std::__exception_ptr::exception_ptr::_M_addref() noexcept {
    // A copy that is never destroyed is one reference more.
    alignas(exception_ptr) unsigned char copy[sizeof(exception_ptr)];
    copy_exception_ptr(copy, this);
}

void std::__exception_ptr::exception_ptr::_M_release() noexcept { destroy_exception_ptr(this); }
#endif

#if defined(__GLIBC__) && defined(__x86_64__)
// GLIBC_2.29: the same logarithm without the report of errors; the linker sends calls of log here (--wrap).
extern "C" double old_log(double value);
__asm__(".symver old_log, log@GLIBC_2.2.5");

extern "C" double __wrap_log(double value) { return old_log(value); }
#endif
