#pragma once

/// Marks what the shared library exports; everything else is hidden.
#if defined(SPARSECAST_STATIC)
#define SPARSECAST_API
#elif defined(SPARSECAST_BUILDING)
#define SPARSECAST_API __attribute__((visibility("default")))
#else
#define SPARSECAST_API
#endif
