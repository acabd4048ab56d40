#include "dmuon/train/train.h"

int main(int argc, char** argv) { return dmuon::generate(argc, argv, dmuon::models()); }
