#include "robocache/interpolation/methods.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/cpp/random_data.hpp"

namespace robocache {
namespace {

using test::Random;

struct Row {
  std::vector<double> data;
  double operator[](int64_t i) const { return data[static_cast<size_t>(i)]; }
};

// Ascending, some times several times over.
Row random_times(Random& random, int64_t n) {
  Row times;
  double t = 1;
  for (int64_t i = 0; i < n; ++i) {
    if (i > 0 && !random.one_in(3)) t += random.between(0.25, 2);
    times.data.push_back(t);
  }
  return times;
}

std::vector<int64_t> last_of_each_time(const Row& times) {
  std::vector<int64_t> rows;
  for (size_t i = 0; i < times.data.size(); ++i) {
    if (i + 1 == times.data.size() || times.data[i] != times.data[i + 1]) rows.push_back(static_cast<int64_t>(i));
  }
  return rows;
}

TEST(Stencil, IsOfTheLastSamplesOfDistinctTimes) {
  Random random(31);
  for (int trial = 0; trial < 3000; ++trial) {
    const int64_t n = 1 + random.below(trial % 10 == 0 ? 200 : 12);
    const Row times = random_times(random, n);
    const std::vector<int64_t> rows = last_of_each_time(times);
    const auto kept = static_cast<int64_t>(rows.size());
    for (int64_t left = 0; left + 1 < kept; ++left) {
      for (int reach = 0; reach <= 2; ++reach) {
        const auto stencil =
            stencil_around(times, n, rows[static_cast<size_t>(left)], rows[static_cast<size_t>(left + 1)], reach);
        EXPECT_EQ(stencil.before, std::min<int64_t>(reach, left));
        EXPECT_EQ(stencil.after, std::min<int64_t>(reach, kept - 2 - left));
        for (int i = 0; i < 6; ++i) {
          const int64_t at = std::min(std::max(left - 2 + i, left - stencil.before), left + 1 + stencil.after);
          EXPECT_EQ(stencil.rows[i], rows[static_cast<size_t>(at)]);
        }
      }
    }
  }
}

TEST(Stencil, StaysInTheRowWhateverTheTimes) {
  Random random(32);
  const double odd[] = {NAN, INFINITY, -INFINITY, 0, 1, 1, 2};
  for (int trial = 0; trial < 20000; ++trial) {
    const int64_t n = 2 + random.below(9);
    Row times;
    for (int64_t i = 0; i < n; ++i) times.data.push_back(odd[random.below(7)]);
    const int64_t left = random.below(n - 1);
    const int64_t right = left + 1 + random.below(n - 1 - left);
    const auto stencil = stencil_around(times, n, left, right, 2);
    for (const int64_t row : stencil.rows) EXPECT_TRUE(row >= 0 && row < n);
  }
}

// Slopes and curves by their definitions, over the whole of a row without duplicates, in long double.
using Real = long double;

int sign(Real x) { return (x > 0) - (x < 0); }

Real pchip_end(Real h0, Real h1, Real m0, Real m1) {
  const Real d = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1);
  if (sign(d) != sign(m0)) return 0;
  if (sign(m0) != sign(m1) && std::abs(d) > 3 * std::abs(m0)) return 3 * m0;
  return d;
}

std::vector<Real> slopes(InterpolationMethod method, const std::vector<double>& x, const std::vector<double>& y) {
  const size_t n = x.size();
  std::vector<Real> h;
  std::vector<Real> m;
  for (size_t i = 0; i + 1 < n; ++i) {
    h.push_back(static_cast<Real>(x[i + 1]) - x[i]);
    m.push_back((static_cast<Real>(y[i + 1]) - y[i]) / h.back());
  }
  std::vector<Real> d(n, m[0]);
  if (n == 2) return d;
  if (method == InterpolationMethod::kPchip) {
    d[0] = pchip_end(h[0], h[1], m[0], m[1]);
    d[n - 1] = pchip_end(h[n - 2], h[n - 3], m[n - 2], m[n - 3]);
    for (size_t i = 1; i + 1 < n; ++i) {
      const Real w1 = 2 * h[i] + h[i - 1];
      const Real w2 = h[i] + 2 * h[i - 1];
      d[i] = sign(m[i - 1]) * sign(m[i]) <= 0 ? 0 : (w1 + w2) / (w1 / m[i - 1] + w2 / m[i]);
    }
    return d;
  }
  std::vector<Real> wide{3 * m[0] - 2 * m[1], 2 * m[0] - m[1]};
  wide.insert(wide.end(), m.begin(), m.end());
  wide.push_back(2 * m[n - 2] - m[n - 3]);
  wide.push_back(3 * m[n - 2] - 2 * m[n - 3]);
  for (size_t i = 0; i < n; ++i) {
    const Real* w = &wide[i];  // slopes i - 2 to i + 1
    const Real after = std::abs(w[3] - w[2]);
    const Real before = std::abs(w[1] - w[0]);
    d[i] = after + before == 0 ? (w[1] + w[2]) / 2 : (after * w[1] + before * w[2]) / (after + before);
  }
  return d;
}

Real hermite(Real w, Real h, Real a, Real b, Real p, Real q) {
  return (1 + 2 * w) * (1 - w) * (1 - w) * a + w * (1 - w) * (1 - w) * h * p + w * w * (3 - 2 * w) * b +
         w * w * (w - 1) * h * q;
}

template <class Scalar>
Scalar value_at(InterpolationMethod method, const std::vector<double>& x, const std::vector<Scalar>& y, int64_t left,
                double w) {
  const Row times{x};
  const auto n = static_cast<int64_t>(x.size());
  const auto stencil = stencil_around(times, n, left, left + 1, reach_of(method));
  const auto weights = curve_weights<double>(method, spacing_around(times, n, stencil, reach_of(method), w));
  CurveWeights<Scalar> c;
  c.along = Scalar(weights.along);
  c.early = Scalar(weights.early);
  c.late = Scalar(weights.late);
  for (int i = 0; i < 4; ++i) c.stretch[i] = Scalar(weights.stretch[i]);
  c.share_left = Scalar(weights.share_left);
  c.share_right = Scalar(weights.share_right);
  const auto at = [&](int i) { return y[static_cast<size_t>(stencil.rows[i])]; };
  return method == InterpolationMethod::kPchip
             ? Pchip::value(c, stencil.before, stencil.after, {at(1), at(2), at(3), at(4)})
             : Akima::value(c, stencil.before, stencil.after, {at(0), at(1), at(2), at(3), at(4), at(5)});
}

TEST(Curve, IsTheHermiteCubicOfItsDefinition) {
  Random random(33);
  for (const InterpolationMethod method : {InterpolationMethod::kPchip, InterpolationMethod::kAkima}) {
    for (int trial = 0; trial < 4000; ++trial) {
      const int64_t n = 2 + random.below(8);
      std::vector<double> x{0};
      std::vector<double> y;
      for (int64_t i = 0; i < n; ++i) {
        if (i > 0) x.push_back(x.back() + std::exp2(static_cast<double>(random.below(5))));
        y.push_back(random.one_in(4) && i > 0 ? y.back() : static_cast<double>(random.below(9)));  // plateaus, turns
      }
      const std::vector<Real> d = slopes(method, x, y);
      for (int64_t left = 0; left + 1 < n; ++left) {
        const auto l = static_cast<size_t>(left);
        const Real h = static_cast<Real>(x[l + 1]) - x[l];
        const double w = random.between(0, 1);
        // Whole values below 9 and gaps of powers of two: slopes times h are below 9 * 16 * 5, and 1e-12 is 64 units
        // in the last place of that, what rule 10.1 grants.
        EXPECT_NEAR(value_at(method, x, y, left, w), static_cast<double>(hermite(w, h, y[l], y[l + 1], d[l], d[l + 1])),
                    1e-12);
        if (left == 0) {
          EXPECT_NEAR(value_at(method, x, y, 0, -1.5), static_cast<double>(y[0] - 1.5 * h * d[0]), 1e-11);
        }
        if (left + 2 == n) {
          EXPECT_NEAR(value_at(method, x, y, left, 2.5), static_cast<double>(y[l + 1] + 1.5 * h * d[l + 1]), 1e-11);
        }
      }
    }
  }
}

// A value and its derivative: what curves are differentiated with.
struct Dual {
  double x = 0;
  double dx = 0;
  Dual() = default;
  explicit Dual(double value) : x(value) {}
  Dual(double value, double slope) : x(value), dx(slope) {}
};
Dual operator+(Dual a, Dual b) { return {a.x + b.x, a.dx + b.dx}; }
Dual operator-(Dual a, Dual b) { return {a.x - b.x, a.dx - b.dx}; }
Dual operator-(Dual a) { return {-a.x, -a.dx}; }
Dual operator*(Dual a, Dual b) { return {a.x * b.x, a.x * b.dx + a.dx * b.x}; }
bool operator<(Dual a, Dual b) { return a.x < b.x; }
bool operator>(Dual a, Dual b) { return a.x > b.x; }
bool operator==(Dual a, Dual b) { return a.x == b.x; }
Dual multiply_add(Dual a, Dual b, Dual c) { return a * b + c; }
Dual absolute(Dual a) { return a.x < 0 ? -a : a; }
Dual quotient(Dual a, Dual b) { return {a.x / b.x, (a.dx * b.x - a.x * b.dx) / (b.x * b.x)}; }

TEST(Curve, RunsOnNumbersThatCarryADerivative) {
  Random random(34);
  for (const InterpolationMethod method : {InterpolationMethod::kPchip, InterpolationMethod::kAkima}) {
    for (int trial = 0; trial < 500; ++trial) {
      const std::vector<double> x{0, 1, 3, 3.5, 5, 6};
      std::vector<Dual> y;
      for (size_t i = 0; i < x.size(); ++i) y.emplace_back(random.between(-5, 5));
      const auto which = static_cast<size_t>(random.below(6));
      const int64_t left = random.below(5);
      const double w = random.between(0.05, 0.95);
      y[which].dx = 1;
      const double derivative = value_at(method, x, y, left, w).dx;
      const double step = 1e-6;
      const auto moved = [&](double by) {
        std::vector<double> z;
        for (size_t i = 0; i < y.size(); ++i) z.push_back(y[i].x + (i == which ? by : 0));
        return value_at(method, x, z, left, w);
      };
      const double right_side = (moved(step) - moved(0)) / step;
      const double left_side = (moved(0) - moved(-step)) / step;
      if (std::abs(right_side - left_side) > 1e-3) continue;  // a kink: a turn, a weight of 0
      EXPECT_NEAR(derivative, (left_side + right_side) / 2, 1e-3);
    }
  }
}

}  // namespace
}  // namespace robocache
