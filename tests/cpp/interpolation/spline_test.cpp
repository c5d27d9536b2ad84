#include "robocache/interpolation/spline.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::Random;

struct Times {
  const double* data;
  double operator[](int64_t i) const { return data[i]; }
};

// The slopes by time, at the samples that count.
template <class Work, int kLanes = 1>
std::vector<Work> slopes(const std::vector<double>& x, const std::vector<Work>& y, Boundary boundary) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<SplineRow> table(x.size());
  spline_table(Times{x.data()}, n, double{}, boundary, table.data());
  std::vector<Work> made(y.size(), Work(-77));
  spline_sweep_row<kLanes>(table.data(), y.data(), kLanes, 1, made.data(), kLanes);
  for (Work& slope : made) slope = static_cast<Work>(slope / (x.back() - x.front()));
  return made;
}

std::vector<double> random_times(Random& random, int n) {
  std::vector<double> x{random.between(-1, 1)};
  for (int i = 1; i < n; ++i) x.push_back(x.back() + random.between(0.5, 2));
  return x;
}

TEST(Spline, NotAKnotIsTheCubicThatTheSamplesLieOn) {
  Random random(51);
  for (int n = 3; n < 30; ++n) {
    const std::vector<double> x = random_times(random, n);
    const double c3 = n == 3 ? 0 : random.between(-1, 1);  // through three samples goes a parabola
    const double c2 = random.between(-1, 1);
    std::vector<double> y;
    double size = 0;
    for (const double t : x) {
      y.push_back(((c3 * t + c2) * t - 3) * t + 5);
      size = std::max(size, std::abs(y.back()));
    }
    const std::vector<double> s = slopes(x, y, Boundary::kNotAKnot);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(s[i], (3 * c3 * x[i] + 2 * c2) * x[i] - 3, 1e-13 * (1 + size)) << n;
    }
  }
}

// Half the second derivative of the Hermite cubic of a gap at its start and end.
double bend_at_start(double h, double step, double p, double q) { return (3 * step / h - 2 * p - q) / h; }
double bend_at_end(double h, double step, double p, double q) { return (p + 2 * q - 3 * step / h) / h; }

TEST(Spline, BendsAlikeOnBothSidesOfASampleAndNotAtNaturalEnds) {
  Random random(52);
  for (int n = 2; n < 40; ++n) {
    const std::vector<double> x = random_times(random, n);
    std::vector<double> y;
    for (int i = 0; i < n; ++i) y.push_back(random.between(-10, 10));
    for (const Boundary boundary : {Boundary::kNatural, Boundary::kNotAKnot}) {
      const std::vector<double> s = slopes(x, y, boundary);
      std::vector<double> starts;
      std::vector<double> ends;
      for (size_t i = 0; i + 1 < x.size(); ++i) {
        const double h = x[i + 1] - x[i];
        starts.push_back(bend_at_start(h, y[i + 1] - y[i], s[i], s[i + 1]));
        ends.push_back(bend_at_end(h, y[i + 1] - y[i], s[i], s[i + 1]));
      }
      for (size_t i = 1; i < starts.size(); ++i) EXPECT_NEAR(ends[i - 1], starts[i], 1e-11);
      if (boundary == Boundary::kNatural) {
        EXPECT_NEAR(starts.front(), 0, 1e-11);
        EXPECT_NEAR(ends.back(), 0, 1e-11);
      }
    }
  }
}

TEST(Spline, SamplesOfOneTimeCountAsTheirLast) {
  const std::vector<double> x{0, 0, 1, 3, 3, 3, 4, 6, 6};
  const std::vector<double> y{9, 1, 2, 9, 9, 4, 3, 9, 0};
  for (const Boundary boundary : {Boundary::kNatural, Boundary::kNotAKnot}) {
    const std::vector<double> all = slopes(x, y, boundary);
    const std::vector<double> kept = slopes<double>({0, 1, 3, 4, 6}, {1, 2, 4, 3, 0}, boundary);
    const size_t rows[] = {1, 2, 5, 6, 8};
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(all[rows[i]], kept[i]);
  }
}

TEST(Spline, FeaturesSideBySideGiveTheBitsOfEachAlone) {
  Random random(53);
  constexpr int kLanes = 8;
  for (const int n : {2, 3, 4, 50}) {
    const std::vector<double> x = random_times(random, n);
    std::vector<float> y;
    for (int i = 0; i < n * kLanes; ++i) y.push_back(static_cast<float>(random.between(-10, 10)));
    const std::vector<float> together = slopes<float, kLanes>(x, y, Boundary::kNotAKnot);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      std::vector<float> one;
      for (size_t i = 0; i < x.size(); ++i) one.push_back(y[i * kLanes + lane]);
      const std::vector<float> alone = slopes(x, one, Boundary::kNotAKnot);
      for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(together[i * kLanes + lane], alone[i]);
    }
  }
}

TEST(Spline, ANanReachesEverySlope) {
  for (const Boundary boundary : {Boundary::kNatural, Boundary::kNotAKnot}) {
    for (size_t n = 2; n < 9; ++n) {
      for (size_t bad = 0; bad < n; ++bad) {
        std::vector<double> x;
        std::vector<double> y;
        for (size_t i = 0; i < n; ++i) {
          x.push_back(static_cast<double>(i));
          y.push_back(i == bad ? NAN : 1);
        }
        for (const double s : slopes(x, y, boundary)) EXPECT_TRUE(std::isnan(s));
      }
    }
  }
}

}  // namespace
}  // namespace robocache
