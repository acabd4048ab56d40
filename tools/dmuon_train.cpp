#include "dmuon/train/train.h"

int main(int argc, char** argv) { return dmuon::train(argc, argv, dmuon::models()); }
