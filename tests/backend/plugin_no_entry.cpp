// A shared library that is no plug-in.
extern "C" int dmuon_test_unrelated() { return 0; }
