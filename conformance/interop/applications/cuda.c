// The driver's library of a machine without a GPU, for programs that link with it: each call says so.

enum { NO_DEVICE = 100 };

int cuCtxSetCurrent(void *context) {
  (void)context;
  return NO_DEVICE;
}

int cuDeviceGetPCIBusId(char *id, int length, int device) {
  (void)id, (void)length, (void)device;
  return NO_DEVICE;
}

int cuPointerGetAttributes(unsigned count, int *attributes, void **data, unsigned long long pointer) {
  (void)count, (void)attributes, (void)data, (void)pointer;
  return NO_DEVICE;
}
