//! Trigonometric and hyperbolic functions of decimals.
//!
//! libdecnumber has none, so they are summed up from their series with 54
//! digits and rounded to 34 in the end. An angle is first brought within a turn;
//! beyond 10^15 turns too few digits of pi would be left, and the result comes
//! from doubles instead. Domain errors are the caller's to refuse: here they
//! are NaN.

use super::arithmetic::{WideWork, from_wide, to_wide, wide_context};
use super::{Decimal, MIN_EXPONENT};
use dec::Context;

const PI: &str = "3.14159265358979323846264338327950288419716939937510582097494";
/// Terms below this no longer change the result.
const NEGLIGIBLE: &str = "1E-56";
const MOST_TERMS: i32 = 400;

/// A wide number and the context it is computed in.
struct Wide {
    context: Context<WideWork>,
}

impl Wide {
    fn new() -> Self {
        Self {
            context: wide_context(),
        }
    }

    fn constant(&mut self, text: &str) -> WideWork {
        self.context.parse(text).expect("constants are numbers")
    }

    fn whole(&mut self, value: i32) -> WideWork {
        self.context.from_i32(value)
    }

    fn add(&mut self, mut left: WideWork, right: &WideWork) -> WideWork {
        self.context.add(&mut left, right);
        left
    }

    fn subtract(&mut self, mut left: WideWork, right: &WideWork) -> WideWork {
        self.context.sub(&mut left, right);
        left
    }

    fn multiply(&mut self, mut left: WideWork, right: &WideWork) -> WideWork {
        self.context.mul(&mut left, right);
        left
    }

    fn divide(&mut self, mut left: WideWork, right: &WideWork) -> WideWork {
        self.context.div(&mut left, right);
        left
    }

    fn square_root(&mut self, mut value: WideWork) -> WideWork {
        self.context.sqrt(&mut value);
        value
    }

    fn is_negligible(&mut self, term: &WideWork) -> bool {
        let mut magnitude = *term;
        self.context.abs(&mut magnitude);
        let limit = self.constant(NEGLIGIBLE);
        !matches!(
            self.context.partial_cmp(&magnitude, &limit),
            Some(std::cmp::Ordering::Greater)
        )
    }

    /// `first + first * x^2 * sign / ((n + 1)(n + 2)) + …`: sine from n = 1, cosine from 0.
    fn alternating(&mut self, first: WideWork, square: &WideWork, from: i32) -> WideWork {
        let mut sum = first;
        let mut term = first;
        for n in (from..MOST_TERMS).step_by(2) {
            term = self.multiply(term, square);
            let divisor = self.whole(-((n + 1) * (n + 2)));
            term = self.divide(term, &divisor);
            if self.is_negligible(&term) {
                break;
            }
            sum = self.add(sum, &term);
        }
        sum
    }

    fn sine_and_cosine(&mut self, angle: WideWork) -> (WideWork, WideWork) {
        let pi = self.constant(PI);
        let turn = self.add(pi, &pi);
        let mut reduced = angle;
        self.context.rem_near(&mut reduced, &turn);
        let square = self.multiply(reduced, &reduced);
        let one = self.whole(1);
        let sine = self.alternating(reduced, &square, 1);
        let cosine = self.alternating(one, &square, 0);
        (sine, cosine)
    }

    fn arc_tangent(&mut self, value: WideWork) -> WideWork {
        // Each halving of the angle makes the series converge faster.
        const HALVINGS: u32 = 4;
        let one = self.whole(1);
        let mut small = value;
        for _ in 0..HALVINGS {
            let square = self.multiply(small, &small);
            let under = self.add(one, &square);
            let root = self.square_root(under);
            let divisor = self.add(one, &root);
            small = self.divide(small, &divisor);
        }
        let square = self.multiply(small, &small);
        let mut power = small;
        let mut sum = small;
        for n in 1..MOST_TERMS {
            power = self.multiply(power, &square);
            let sign = if n % 2 == 1 { -1 } else { 1 };
            let divisor = self.whole(sign * (2 * n + 1));
            let term = self.divide(power, &divisor);
            if self.is_negligible(&term) {
                break;
            }
            sum = self.add(sum, &term);
        }
        let factor = self.whole(1 << HALVINGS);
        self.multiply(sum, &factor)
    }
}

impl Decimal {
    pub fn sin(self) -> Decimal {
        self.of_angle(f64::sin, |_, sine, _| sine)
    }

    pub fn cos(self) -> Decimal {
        let cosine = self.of_angle(f64::cos, |_, _, cosine| cosine);
        cosine.padded_to(MIN_EXPONENT)
    }

    pub fn tan(self) -> Decimal {
        self.of_angle(f64::tan, |wide, sine, cosine| wide.divide(sine, &cosine))
    }

    pub fn atan(self) -> Decimal {
        match self {
            Decimal::Infinity { negative } => half_pi(negative),
            Decimal::NaN => Decimal::NaN,
            Decimal::Finite { coefficient: 0, .. } => self,
            // Far out, squares would leave the exponent range; the angle is a right one.
            Decimal::Finite { negative, .. } if self.magnitude_power() > 40 => half_pi(negative),
            Decimal::Finite { .. } if self.magnitude_power() < -40 => self,
            Decimal::Finite { .. } => {
                let mut wide = Wide::new();
                let angle = wide.arc_tangent(to_wide(self));
                from_wide(angle)
            }
        }
    }

    /// The angle of the point `(x, self)`.
    pub fn atan2(self, x: Decimal) -> Decimal {
        if self.is_nan() || x.is_nan() || self.is_infinite() || x.is_infinite() {
            return Decimal::from_f64_exact(self.to_f64().atan2(x.to_f64()));
        }
        if x.is_zero() && !self.is_zero() {
            return half_pi(self.is_negative());
        }
        let pi = || from_wide(Wide::new().constant(PI));
        match (self.is_zero(), x.is_negative(), self.is_negative()) {
            (true, false, _) => self,
            (true, true, false) => pi(),
            (true, true, true) => pi().negate(),
            (false, false, _) => self.divide(x).atan(),
            (false, true, below) => {
                let angle = self.divide(x).atan();
                if below {
                    angle.subtract(pi())
                } else {
                    angle.add(pi())
                }
            }
        }
    }

    pub fn asin(self) -> Decimal {
        if self.is_zero() {
            return self;
        }
        self.within(|wide, value| {
            let one = wide.whole(1);
            let square = wide.multiply(value, &value);
            let under = wide.subtract(one, &square);
            if under.is_zero() {
                let pi = wide.constant(PI);
                let two = wide.whole(2);
                let right_angle = wide.divide(pi, &two);
                return wide.multiply(right_angle, &value);
            }
            let root = wide.square_root(under);
            let tangent = wide.divide(value, &root);
            wide.arc_tangent(tangent)
        })
    }

    pub fn acos(self) -> Decimal {
        // 2 atan(sqrt((1 - x) / (1 + x))) keeps its digits near 1.
        self.within(|wide, value| {
            let one = wide.whole(1);
            let over = wide.subtract(one, &value);
            let under = wide.add(one, &value);
            if under.is_zero() {
                return wide.constant(PI);
            }
            let quotient = wide.divide(over, &under);
            let root = wide.square_root(quotient);
            let angle = wide.arc_tangent(root);
            wide.add(angle, &angle)
        })
    }

    pub fn sinh(self) -> Decimal {
        self.of_exponentials(|wide, grown, shrunk| {
            let two = wide.whole(2);
            let difference = wide.subtract(grown, &shrunk);
            wide.divide(difference, &two)
        })
    }

    pub fn cosh(self) -> Decimal {
        if self.is_negligible() {
            return Decimal::ONE.padded_to(MIN_EXPONENT);
        }
        self.of_exponentials(|wide, grown, shrunk| {
            let two = wide.whole(2);
            let sum = wide.add(grown, &shrunk);
            wide.divide(sum, &two)
        })
    }

    pub fn tanh(self) -> Decimal {
        // From here on 34 digits do not tell it from one.
        if !self.is_nan() && self.abs().compare(Decimal::from_i64(50)).is_gt() {
            return Decimal::from_i64(if self.is_negative() { -1 } else { 1 });
        }
        self.of_exponentials(|wide, grown, shrunk| {
            let over = wide.subtract(grown, &shrunk);
            let under = wide.add(grown, &shrunk);
            wide.divide(over, &under)
        })
    }

    pub fn asinh(self) -> Decimal {
        if self.is_negative() {
            return self.negate().asinh().negate();
        }
        self.logarithm_of(|wide, value| {
            let one = wide.whole(1);
            let square = wide.multiply(value, &value);
            let under = wide.add(square, &one);
            let root = wide.square_root(under);
            wide.add(value, &root)
        })
    }

    pub fn acosh(self) -> Decimal {
        if self.compare(Decimal::ONE).is_lt() {
            return Decimal::NaN;
        }
        self.logarithm_of(|wide, value| {
            let one = wide.whole(1);
            let square = wide.multiply(value, &value);
            let under = wide.subtract(square, &one);
            let root = wide.square_root(under);
            wide.add(value, &root)
        })
    }

    pub fn atanh(self) -> Decimal {
        let half = Decimal::Finite {
            negative: false,
            coefficient: 5,
            exponent: -1,
        };
        self.logarithm_of(|wide, value| {
            let one = wide.whole(1);
            let over = wide.add(one, &value);
            let under = wide.subtract(one, &value);
            wide.divide(over, &under)
        })
        .multiply(half)
    }

    pub fn degrees_to_radians(self) -> Decimal {
        let mut wide = Wide::new();
        let (pi, straight) = (wide.constant(PI), wide.whole(180));
        let factor = wide.divide(pi, &straight);
        from_wide(wide.multiply(to_wide(self), &factor))
    }

    pub fn radians_to_degrees(self) -> Decimal {
        let mut wide = Wide::new();
        let (pi, straight) = (wide.constant(PI), wide.whole(180));
        let factor = wide.divide(straight, &pi);
        from_wide(wide.multiply(to_wide(self), &factor))
    }

    /// So small that the odd functions are their argument to 34 digits, while
    /// the formulas would cancel.
    fn is_negligible(self) -> bool {
        self.is_zero() || self.magnitude_power() < -18
    }

    /// The power of ten of the leading digit of a finite number.
    fn magnitude_power(self) -> i32 {
        match self {
            Decimal::Finite {
                coefficient,
                exponent,
                ..
            } => exponent + super::digit_count(coefficient) as i32 - 1,
            Decimal::Infinity { .. } | Decimal::NaN => i32::MAX,
        }
    }

    fn of_angle(
        self,
        in_doubles: fn(f64) -> f64,
        choose: impl FnOnce(&mut Wide, WideWork, WideWork) -> WideWork,
    ) -> Decimal {
        if !matches!(self, Decimal::Finite { .. }) {
            return Decimal::NaN;
        }
        if self.magnitude_power() > 15 {
            return Decimal::from_f64(in_doubles(self.to_f64()));
        }
        let mut wide = Wide::new();
        let (sine, cosine) = wide.sine_and_cosine(to_wide(self));
        from_wide(choose(&mut wide, sine, cosine))
    }

    /// For -1 to 1.
    fn within(self, function: impl FnOnce(&mut Wide, WideWork) -> WideWork) -> Decimal {
        let outside = self.abs().compare(Decimal::ONE).is_gt();
        if self.is_nan() || outside {
            return Decimal::NaN;
        }
        from_wide(function(&mut Wide::new(), to_wide(self)))
    }

    fn of_exponentials(
        self,
        combine: impl FnOnce(&mut Wide, WideWork, WideWork) -> WideWork,
    ) -> Decimal {
        if self.is_negligible() {
            return self;
        }
        let mut wide = Wide::new();
        let mut grown = to_wide(self);
        let mut shrunk = to_wide(self.negate());
        wide.context.exp(&mut grown);
        wide.context.exp(&mut shrunk);
        from_wide(combine(&mut wide, grown, shrunk))
    }

    fn logarithm_of(self, argument: impl FnOnce(&mut Wide, WideWork) -> WideWork) -> Decimal {
        if self.is_negligible() {
            return self;
        }
        let mut wide = Wide::new();
        let mut value = argument(&mut wide, to_wide(self));
        wide.context.ln(&mut value);
        from_wide(value)
    }
}

fn half_pi(negative: bool) -> Decimal {
    let mut wide = Wide::new();
    let (pi, two) = (wide.constant(PI), wide.whole(2));
    let right_angle = from_wide(wide.divide(pi, &two));
    if negative {
        right_angle.negate()
    } else {
        right_angle
    }
}
