//! Trigonometric and hyperbolic functions of decimals.
//!
//! libdecnumber has none, so they are summed up from their series with 54
//! digits and rounded to 34 in the end. An angle is first brought within an
//! eighth of a turn of an axis (`angle.rs`), exactly, however large it is. Domain
//! errors are the caller's to refuse: here they are NaN.

use super::angle::ReducedAngle;
use super::arithmetic::{SMALLEST_ZERO, WideWork, from_wide, to_wide, wide_context};
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

    fn sine_and_cosine(&mut self, angle: Decimal) -> (WideWork, WideWork) {
        let (quadrant, reduced) = match ReducedAngle::of(angle) {
            Some(reduced) => {
                let quarters = self.constant(&reduced.quarters);
                let (pi, two) = (self.constant(PI), self.whole(2));
                let angle = self.multiply(quarters, &pi);
                (reduced.quadrant, self.divide(angle, &two))
            }
            None => (0, to_wide(angle)),
        };
        let square = self.multiply(reduced, &reduced);
        let one = self.whole(1);
        let sine = self.alternating(reduced, &square, 1);
        let cosine = self.alternating(one, &square, 0);
        match quadrant {
            0 => (sine, cosine),
            1 => (cosine, self.negated(sine)),
            2 => (self.negated(sine), self.negated(cosine)),
            _ => (self.negated(cosine), sine),
        }
    }

    fn negated(&mut self, mut value: WideWork) -> WideWork {
        self.context.neg(&mut value);
        value
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
        if self.is_zero() {
            return self;
        }
        self.of_angle(|_, sine, _| sine).padded_to(MIN_EXPONENT)
    }

    pub fn cos(self) -> Decimal {
        // Where one is written without its zeros is the server's habit.
        if !self.is_zero() && (-60..=-18).contains(&self.magnitude_power()) {
            return Decimal::ONE;
        }
        let cosine = self.of_angle(|_, _, cosine| cosine);
        cosine.padded_to(MIN_EXPONENT)
    }

    pub fn tan(self) -> Decimal {
        if self.is_zero() {
            return self.scaled_zero();
        }
        self.of_angle(|wide, sine, cosine| wide.divide(sine, &cosine))
            .padded_to(MIN_EXPONENT)
    }

    pub fn atan(self) -> Decimal {
        match self {
            Decimal::Infinity { negative } => half_pi(negative),
            Decimal::NaN => Decimal::NaN,
            Decimal::Finite { coefficient: 0, .. } => self,
            // Far out, squares would leave the exponent range; the angle is a right one.
            Decimal::Finite { negative, .. } if self.magnitude_power() > 40 => half_pi(negative),
            Decimal::Finite { .. } if self.magnitude_power() < -40 => self.padded_to(MIN_EXPONENT),
            Decimal::Finite { .. } => {
                let mut wide = Wide::new();
                let angle = wide.arc_tangent(to_wide(self));
                from_wide(angle).padded_to(MIN_EXPONENT)
            }
        }
    }

    /// The angle of the point `(x, self)`.
    pub fn atan2(self, x: Decimal) -> Decimal {
        if self.is_nan() || x.is_nan() {
            return Decimal::NaN;
        }
        let signed = |angle: Decimal| match self.is_negative() {
            true => angle.negate(),
            false => angle,
        };
        match (self.is_infinite(), x) {
            (true, Decimal::Infinity { negative }) => {
                return signed(eighths_of_turn(if negative { 3 } else { 1 }));
            }
            (true, _) => return half_pi(self.is_negative()),
            (false, Decimal::Infinity { negative: false }) => return signed(SMALLEST_ZERO),
            (false, Decimal::Infinity { negative: true }) => {
                return signed(from_wide(Wide::new().constant(PI)));
            }
            (false, _) => {}
        }
        if x.is_zero() && !self.is_zero() {
            return half_pi(self.is_negative());
        }
        let pi = || from_wide(Wide::new().constant(PI));
        match (self.is_zero(), x.is_negative(), self.is_negative()) {
            (true, false, _) => signed(SMALLEST_ZERO),
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
            return self.scaled_zero();
        }
        let angle = self.within(|wide, value| {
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
        });
        angle.padded_to(MIN_EXPONENT)
    }

    pub fn acos(self) -> Decimal {
        if !self.is_nan() && self.compare(Decimal::ONE).is_eq() {
            return SMALLEST_ZERO;
        }
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
        if self.is_zero() {
            return self.scaled_zero();
        }
        self.of_exponentials(|wide, grown, shrunk| {
            let two = wide.whole(2);
            let difference = wide.subtract(grown, &shrunk);
            wide.divide(difference, &two)
        })
    }

    pub fn cosh(self) -> Decimal {
        if !self.is_zero() && (-39..=-17).contains(&self.magnitude_power()) {
            return Decimal::ONE;
        }
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
        if self.is_zero() {
            return self;
        }
        // From here on 34 digits do not tell it from one.
        if !self.is_nan() && self.abs().compare(Decimal::from_i64(40)).is_ge() {
            return Decimal::from_i64(if self.is_negative() { -1 } else { 1 });
        }
        self.of_exponentials(|wide, grown, shrunk| {
            let over = wide.subtract(grown, &shrunk);
            let under = wide.add(grown, &shrunk);
            wide.divide(over, &under)
        })
    }

    pub fn asinh(self) -> Decimal {
        if self.is_zero() {
            return self.smallest_zero();
        }
        if self.is_negative() {
            return self.negate().asinh().negate();
        }
        if self.is_far() {
            return self.logarithm_of_double();
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
        if self.is_far() {
            return self.logarithm_of_double();
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
        if self.is_zero() {
            return self.smallest_zero();
        }
        // The logarithm would cancel where the function is its argument.
        if self.is_negligible() {
            return self.padded_to(MIN_EXPONENT);
        }
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

    /// The zero that some functions give for zero: as many digits behind the point as they work with.
    fn scaled_zero(self) -> Decimal {
        const DIGITS: i32 = 40;
        match self {
            Decimal::Finite {
                negative, exponent, ..
            } => Decimal::Finite {
                negative,
                coefficient: 0,
                exponent: (exponent - DIGITS).max(MIN_EXPONENT),
            },
            Decimal::Infinity { .. } | Decimal::NaN => self,
        }
    }

    fn smallest_zero(self) -> Decimal {
        match self.is_negative() {
            true => SMALLEST_ZERO.negate(),
            false => SMALLEST_ZERO,
        }
    }

    /// So large that one beside its square does not show, which itself may be out of range.
    fn is_far(self) -> bool {
        !self.is_infinite() && !self.is_nan() && self.magnitude_power() > 60
    }

    /// `ln(2x)`.
    fn logarithm_of_double(self) -> Decimal {
        self.logarithm_of(|wide, value| wide.add(value, &value))
    }

    /// The power of ten of the leading digit of a finite number.
    pub(super) fn magnitude_power(self) -> i32 {
        match self {
            Decimal::Finite {
                coefficient,
                exponent,
                ..
            } => exponent + super::digit_count(coefficient) as i32 - 1,
            Decimal::Infinity { .. } | Decimal::NaN => i32::MAX,
        }
    }

    fn of_angle(self, choose: impl FnOnce(&mut Wide, WideWork, WideWork) -> WideWork) -> Decimal {
        if !matches!(self, Decimal::Finite { .. }) {
            return Decimal::NaN;
        }
        let mut wide = Wide::new();
        let (sine, cosine) = wide.sine_and_cosine(self);
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
            return self.padded_to(MIN_EXPONENT);
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
            return self.padded_to(MIN_EXPONENT);
        }
        let mut wide = Wide::new();
        let mut value = argument(&mut wide, to_wide(self));
        wide.context.ln(&mut value);
        from_wide(value)
    }
}

/// One eighth, or three. The server has a digit less of one.
fn eighths_of_turn(count: i32) -> Decimal {
    let mut wide = Wide::new();
    if count == 1 {
        return from_wide(wide.constant("0.785398163397448309615660845819876"));
    }
    let (pi, four, count) = (wide.constant(PI), wide.whole(4), wide.whole(count));
    let eighth = wide.divide(pi, &four);
    from_wide(wide.multiply(eighth, &count))
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
