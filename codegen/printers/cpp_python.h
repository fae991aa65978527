// The Python side of a generated module: arguments of entry points and their errors.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject* data_ptr_name;

// Address of a tensor's first element.
static int read_pointer(PyObject* tensor, void** out) {
    PyObject* address = PyObject_CallMethodNoArgs(tensor, data_ptr_name);
    if (!address) return 0;
    *out = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return *out != NULL || !PyErr_Occurred();
}

static int read_int(PyObject* value, int64_t* out) {
    *out = PyLong_AsLongLong(value);
    return *out != -1 || !PyErr_Occurred();
}

static int read_double(PyObject* value, double* out) {
    *out = PyFloat_AsDouble(value);
    return *out != -1.0 || !PyErr_Occurred();
}

static int read_bool(PyObject* value, bool* out) {
    const int truth = PyObject_IsTrue(value);
    *out = truth == 1;
    return truth >= 0;
}

static int check_count(const char* name, Py_ssize_t expected, Py_ssize_t given) {
    if (expected == given) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, %zd were given", name, expected, given);
    return 0;
}

static PyObject* finish(int status, const char* const* messages) {
    if (status == 0) Py_RETURN_NONE;
    if (status == 1) return PyErr_NoMemory();
    PyErr_SetString(PyExc_IndexError, messages[status - 2]);
    return NULL;
}
