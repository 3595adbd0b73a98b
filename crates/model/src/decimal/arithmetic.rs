//! Decimal arithmetic: 34 digits, rounding half to even, as the server computes.
//!
//! Sums, products, quotients, roots and the exponential functions come from
//! libdecnumber, reached through coefficient and exponent, never through bytes:
//! it has another encoding. Remainder and rounding to a place are done here on
//! 128-bit integers, because libdecnumber refuses what the server answers
//! (a remainder whose quotient is longer than 34 digits, say).
//!
//! The last digit of `pow` is not always the server's, which is not always the
//! right one.

use super::{
    Decimal, MAX_COEFFICIENT, MAX_DIGITS, MAX_EXPONENT, MIN_EXPONENT, clamp_exponent, digit_count,
};
use dec::Context;

/// Where rounding to a place goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    HalfEven,
    TowardZero,
    /// Toward minus infinity.
    Floor,
    /// Toward infinity.
    Ceiling,
}

/// Room for 36 digits: the 34 of a decimal, in units of three.
type Work = dec::Decimal<12>;
/// Room for intermediate results that are rounded only at the end.
pub(super) type WideWork = dec::Decimal<20>;
const UNIT: u128 = 1000;

/// The power of ten of the least number that has all its digits.
const MIN_NORMAL_POWER: i32 = -6143;

/// Zero as functions return it that have no better one.
pub(super) const SMALLEST_ZERO: Decimal = Decimal::Finite {
    negative: false,
    coefficient: 0,
    exponent: MIN_EXPONENT,
};

const NEGATIVE: u8 = 0x80;
const INFINITE: u8 = 0x40;
const QUIET_NAN: u8 = 0x20;

impl Decimal {
    // Named, not operators: each of these rounds.
    #[allow(clippy::should_implement_trait)]
    pub fn add(self, other: Decimal) -> Decimal {
        self.combine(other, |context, left, right| context.add(left, right))
    }

    pub fn subtract(self, other: Decimal) -> Decimal {
        self.combine(other, |context, left, right| context.sub(left, right))
    }

    pub fn multiply(self, other: Decimal) -> Decimal {
        self.combine(other, |context, left, right| context.mul(left, right))
    }

    /// Division by zero gives infinity or NaN; callers refuse it before.
    pub fn divide(self, other: Decimal) -> Decimal {
        self.combine(other, |context, left, right| context.div(left, right))
    }

    /// The result has all 34 digits, as the server writes powers, and zero has no sign. Where
    /// libdecnumber finds nothing to answer, this is what the server says: `x^0` is 1 whatever `x`
    /// is, `(-1)^infinity` is 1, whole exponents may be of any size.
    ///
    /// Zero to a negative power is the caller's to refuse.
    pub fn pow(self, exponent: Decimal) -> Decimal {
        let is_one = |value: Decimal| value.compare(Decimal::ONE).is_eq();
        if exponent.is_zero() || (!self.is_nan() && is_one(self)) {
            return Decimal::ONE.padded_to(MIN_EXPONENT);
        }
        if self.is_nan() || exponent.is_nan() {
            return Decimal::NaN;
        }
        let is_whole = exponent.is_infinite() || exponent.is_integral();
        if self.is_negative() && !self.is_zero() && !self.is_infinite() && !is_whole {
            return Decimal::NaN;
        }
        let is_odd = !exponent.remainder(Decimal::from_i64(2)).is_zero() && !exponent.is_infinite();
        let magnitude = self.abs();
        let power = match (magnitude, exponent) {
            _ if is_one(magnitude) => Decimal::ONE,
            (_, Decimal::Infinity { negative }) => {
                match magnitude.compare(Decimal::ONE).is_gt() != negative {
                    true => Decimal::Infinity { negative: false },
                    false => Decimal::ZERO,
                }
            }
            _ if magnitude.is_zero() || magnitude.is_infinite() => {
                match magnitude.is_zero() == exponent.is_negative() {
                    true => Decimal::Infinity { negative: false },
                    false => Decimal::ZERO,
                }
            }
            // Below the least normal number libdecnumber needs more room.
            _ if magnitude.magnitude_power() < MIN_NORMAL_POWER => {
                let mut value = to_wide(magnitude);
                wide_context().pow(&mut value, &to_wide(exponent));
                from_wide(value)
            }
            _ => magnitude.combine(exponent, |context, left, right| context.pow(left, right)),
        };
        let power = match power {
            Decimal::Finite { coefficient: 0, .. } => return SMALLEST_ZERO,
            power => power.padded_to(MIN_EXPONENT),
        };
        // What overflows does so upwards, but for a power of infinity itself.
        let keeps_sign = !power.is_infinite() || self.is_infinite();
        match self.is_negative() && is_odd && is_whole && keeps_sign {
            true => power.negate(),
            false => power,
        }
    }

    pub fn exp(self) -> Decimal {
        if self.is_zero() || self.is_infinite() {
            return self.transform(|context, value| context.exp(value));
        }
        // So close to one that its digits do not show it.
        if self.magnitude_power() < -34 {
            return Decimal::ONE;
        }
        match self.transform(|context, value| context.exp(value)) {
            Decimal::Finite { coefficient: 0, .. } => SMALLEST_ZERO,
            power => power,
        }
    }

    pub fn ln(self) -> Decimal {
        self.transform(|context, value| context.ln(value))
    }

    pub fn log10(self) -> Decimal {
        self.transform(|context, value| context.log10(value))
    }

    pub fn sqrt(self) -> Decimal {
        self.transform(|context, value| context.sqrt(value))
    }

    /// The logarithm to any base. Computed with more digits than the result
    /// has, so that `log(8, 2)` is 3 and not its neighbour.
    pub fn log(self, base: Decimal) -> Decimal {
        let mut context = wide_context();
        let mut numerator = to_wide(self);
        let mut denominator = to_wide(base);
        context.ln(&mut numerator);
        context.ln(&mut denominator);
        context.div(&mut numerator, &denominator);
        let result = from_wide(numerator);
        if result.is_integral() {
            result.quantize(0).unwrap_or(result)
        } else {
            result
        }
    }

    /// The remainder of truncated division: it has the sign of the dividend.
    pub fn remainder(self, divisor: Decimal) -> Decimal {
        let (
            Decimal::Finite {
                negative,
                coefficient: dividend,
                exponent: dividend_exponent,
            },
            Decimal::Finite {
                coefficient: divisor_coefficient,
                exponent: divisor_exponent,
                ..
            },
        ) = (self, divisor)
        else {
            let keeps_dividend = matches!(self, Decimal::Finite { .. }) && !divisor.is_nan();
            return if keeps_dividend { self } else { Decimal::NaN };
        };
        if divisor_coefficient == 0 {
            return Decimal::NaN;
        }
        let coefficient = if dividend_exponent >= divisor_exponent {
            let shift = (dividend_exponent - divisor_exponent).unsigned_abs();
            remainder_shifted(dividend, shift, divisor_coefficient)
        } else {
            // A divisor that outgrows 128 bits is larger than any dividend.
            10u128
                .checked_pow((divisor_exponent - dividend_exponent).unsigned_abs())
                .and_then(|factor| factor.checked_mul(divisor_coefficient))
                .map_or(dividend, |divisor| dividend % divisor)
        };
        Decimal::Finite {
            negative,
            coefficient,
            exponent: dividend_exponent.min(divisor_exponent),
        }
    }

    pub fn abs(self) -> Decimal {
        match self {
            Decimal::Finite {
                coefficient,
                exponent,
                ..
            } => Decimal::Finite {
                negative: false,
                coefficient,
                exponent,
            },
            Decimal::Infinity { .. } => Decimal::Infinity { negative: false },
            Decimal::NaN => Decimal::NaN,
        }
    }

    pub fn negate(self) -> Decimal {
        match self {
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            } => Decimal::Finite {
                negative: !negative,
                coefficient,
                exponent,
            },
            Decimal::Infinity { negative } => Decimal::Infinity {
                negative: !negative,
            },
            Decimal::NaN => Decimal::NaN,
        }
    }

    /// Rounds to `place` digits behind the point (before it if negative) and
    /// writes that many, as far as 34 digits reach.
    pub fn round_to_place(self, place: i32, rounding: Rounding) -> Decimal {
        let Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } = self
        else {
            return self;
        };
        let target = clamp_exponent(place.saturating_neg());
        if exponent >= target {
            return self.padded_to(target);
        }
        let divisor = 10u128.checked_pow((target - exponent).unsigned_abs());
        // A place beyond all digits rounds against something larger than twice any coefficient.
        let divisor = divisor.unwrap_or(10u128.pow(38));
        let (quotient, rest) = (coefficient / divisor, coefficient % divisor);
        let up = match rounding {
            Rounding::HalfEven => match (2 * rest).cmp(&divisor) {
                std::cmp::Ordering::Less => false,
                std::cmp::Ordering::Equal => quotient % 2 == 1,
                std::cmp::Ordering::Greater => true,
            },
            Rounding::TowardZero => false,
            Rounding::Floor => rest > 0 && negative,
            Rounding::Ceiling => rest > 0 && !negative,
        };
        Decimal::Finite {
            negative,
            coefficient: quotient + u128::from(up),
            exponent: target,
        }
    }

    /// NaN where the whole part has more than 34 digits, and of infinity, as on the server.
    pub fn floor(self) -> Decimal {
        self.to_whole(Rounding::Floor)
    }

    /// NaN where the whole part has more than 34 digits, and of infinity, as on the server.
    pub fn ceil(self) -> Decimal {
        self.to_whole(Rounding::Ceiling)
    }

    fn to_whole(self, rounding: Rounding) -> Decimal {
        match self.round_to_place(0, rounding) {
            Decimal::Finite { exponent, .. } if exponent > 0 => Decimal::NaN,
            Decimal::Infinity { .. } => Decimal::NaN,
            rounded => rounded,
        }
    }

    /// The same value with exactly this exponent, if it has that form.
    fn quantize(self, target: i32) -> Option<Decimal> {
        match self.stripped().padded_to(target) {
            padded @ Decimal::Finite { exponent, .. } if exponent == target => Some(padded),
            _ => None,
        }
    }

    /// Lowers the exponent towards `target` by appending zeros, 34 digits at most.
    pub(super) fn padded_to(self, target: i32) -> Decimal {
        let Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } = self
        else {
            return self;
        };
        if coefficient == 0 {
            return Decimal::Finite {
                negative,
                coefficient,
                exponent: exponent.min(target),
            };
        }
        let wanted = (exponent - target).max(0) as u32;
        let zeros = wanted.min(MAX_DIGITS - digit_count(coefficient));
        Decimal::Finite {
            negative,
            coefficient: coefficient * 10u128.pow(zeros),
            exponent: exponent - zeros as i32,
        }
    }

    fn combine(
        self,
        other: Decimal,
        operation: impl FnOnce(&mut Context<Work>, &mut Work, &Work),
    ) -> Decimal {
        let mut value = to_work(self);
        operation(&mut work_context(), &mut value, &to_work(other));
        from_work(value)
    }

    fn transform(self, operation: impl FnOnce(&mut Context<Work>, &mut Work)) -> Decimal {
        let mut value = to_work(self);
        operation(&mut work_context(), &mut value);
        from_work(value)
    }
}

/// `coefficient * 10^shift mod divisor`, a few digits at a time.
fn remainder_shifted(coefficient: u128, shift: u32, divisor: u128) -> u128 {
    const STEP: u32 = 4;
    let mut remainder = coefficient % divisor;
    let mut rest = shift;
    while rest > 0 && remainder > 0 {
        let step = rest.min(STEP);
        remainder = remainder * 10u128.pow(step) % divisor;
        rest -= step;
    }
    remainder
}

fn work_context() -> Context<Work> {
    const VALID: &str = "34 digits and its exponents are within libdecnumber's limits";
    let mut context = Context::<Work>::default();
    context.set_precision(MAX_DIGITS as usize).expect(VALID);
    context.set_max_exponent(6144).expect(VALID);
    context.set_min_exponent(-6143).expect(VALID);
    context.set_clamp(true);
    // The library's own default takes halves away from zero.
    context.set_rounding(dec::Rounding::HalfEven);
    context
}

pub(super) fn wide_context() -> Context<WideWork> {
    const VALID: &str = "the wide context is within libdecnumber's limits";
    let mut context = Context::<WideWork>::default();
    context.set_precision(54).expect(VALID);
    context.set_max_exponent(9999).expect(VALID);
    context.set_min_exponent(-9999).expect(VALID);
    context.set_rounding(dec::Rounding::HalfEven);
    context
}

pub(super) fn to_wide(value: Decimal) -> WideWork {
    wide_context().to_width(to_work(value))
}

/// Rounds to a decimal's digits.
pub(super) fn from_wide(value: WideWork) -> Decimal {
    from_work(work_context().to_width(value))
}

fn to_work(value: Decimal) -> Work {
    let sign = |negative: bool| if negative { NEGATIVE } else { 0 };
    match value {
        Decimal::NaN => Work::from_raw_parts(1, 0, QUIET_NAN, [0; 12]),
        Decimal::Infinity { negative } => {
            Work::from_raw_parts(1, 0, INFINITE | sign(negative), [0; 12])
        }
        Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } => {
            let mut units = [0u16; 12];
            let mut rest = coefficient;
            for unit in &mut units {
                *unit = (rest % UNIT) as u16;
                rest /= UNIT;
            }
            Work::from_raw_parts(digit_count(coefficient), exponent, sign(negative), units)
        }
    }
}

fn from_work(value: Work) -> Decimal {
    if value.is_nan() {
        return Decimal::NaN;
    }
    let negative = value.is_negative();
    if value.is_infinite() {
        return Decimal::Infinity { negative };
    }
    let coefficient = value
        .coefficient_units()
        .iter()
        .rev()
        .fold(0, |sum: u128, unit| sum * UNIT + u128::from(*unit));
    let exponent = value.exponent();
    assert!(
        coefficient <= MAX_COEFFICIENT && (MIN_EXPONENT..=MAX_EXPONENT).contains(&exponent),
        "libdecnumber rounds to the context's digits and exponents"
    );
    Decimal::Finite {
        negative,
        coefficient,
        exponent,
    }
}
