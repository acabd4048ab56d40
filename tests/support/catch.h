// The one place that knows which Catch2 is installed: Debian 12 has v2 in one header.
#pragma once

#include <catch2/catch.hpp>
