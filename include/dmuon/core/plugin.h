// How a plug-in, a shared library opened at run time, is recognised as one of this build before anything of it is used.
#pragma once

namespace dmuon {

// What the table of every plug-in begins with. These three members never change.
struct PluginIdentity {
  int version;            // of the table, of the headers it was built with
  int size;               // sizeof the table
  const char* interface;  // DMUON_INTERFACE: a hash of every header that library and plug-ins share, public and private, and of the
                          // compiler; dmuon_stamp_interface() of CMake defines it for the file that holds the table
};

}  // namespace dmuon
