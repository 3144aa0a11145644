/* Extension module for tests, in the manner of CUDA libraries for Python.
 * The module releases the GIL during a call and raises an exception for an error.
 * The module has a lock of its own, on which two threads can deadlock. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

typedef int (*memset_function)(unsigned long long address, unsigned char value, size_t count);

static PyObject *set_with(PyObject *arguments, pthread_mutex_t *lock) {
    unsigned long long address;
    unsigned char value;
    Py_ssize_t count;
    int result;
    if (!PyArg_ParseTuple(arguments, "Kbn", &address, &value, &count))
        return NULL;
    memset_function function = (memset_function)dlsym(RTLD_DEFAULT, "cuMemsetD8_v2");
    if (!function)
        return PyErr_Format(PyExc_ImportError, "no cuMemsetD8_v2");
    Py_BEGIN_ALLOW_THREADS;
    if (lock)
        pthread_mutex_lock(lock);
    result = function(address, value, (size_t)count);
    if (lock)
        pthread_mutex_unlock(lock);
    Py_END_ALLOW_THREADS;
    if (result != 0)
        return PyErr_Format(PyExc_RuntimeError, "CUDA error: %d", result);
    Py_RETURN_NONE;
}

/* set(address, value, count): RuntimeError on an error, like torch. */
static PyObject *set(PyObject *module, PyObject *arguments) {
    (void)module;
    return set_with(arguments, NULL);
}

/* set_all(address, count, times): several calls, whose errors are checked after the last call. */
static PyObject *set_all(PyObject *module, PyObject *arguments) {
    unsigned long long address;
    Py_ssize_t count;
    int times, failed = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Kni", &address, &count, &times))
        return NULL;
    memset_function function = (memset_function)dlsym(RTLD_DEFAULT, "cuMemsetD8_v2");
    Py_BEGIN_ALLOW_THREADS;
    for (int i = 0; i < times; i++)
        failed += function(address, 1, (size_t)count) != 0;
    Py_END_ALLOW_THREADS;
    if (failed)
        return PyErr_Format(PyExc_RuntimeError, "CUDA errors: %d", failed);
    Py_RETURN_NONE;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* set_locked(address, value, count): like set, but the call holds a lock of the library. */
static PyObject *set_locked(PyObject *module, PyObject *arguments) {
    (void)module;
    return set_with(arguments, &mutex);
}

/* take_lock(descriptor): write a byte, then wait for the library's lock while holding the interpreter lock. */
static PyObject *take_lock(PyObject *module, PyObject *arguments) {
    int descriptor;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "i", &descriptor))
        return NULL;
    if (write(descriptor, "", 1) != 1)
        return PyErr_SetFromErrno(PyExc_OSError);
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"set", set, METH_VARARGS, NULL},
                                {"set_all", set_all, METH_VARARGS, NULL},
                                {"set_locked", set_locked, METH_VARARGS, NULL},
                                {"take_lock", take_lock, METH_VARARGS, NULL},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "raising", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_raising(void) {
    return PyModule_Create(&module);
}
