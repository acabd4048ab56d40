#include "dmuon/train/train.h"

int main(int argc, char** argv) { return dmuon::evaluate(argc, argv, dmuon::models()); }
