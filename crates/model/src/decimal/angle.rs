//! Angles brought near an axis, exactly, however large they are.
//!
//! An angle of `c * 10^e` is `c * 10^e / 2pi` turns, of which only the fraction counts. The
//! fraction of `10^e / 2pi` is the digits of `1 / 2pi` behind the first `e`, so a window of these
//! digits times `c` is all there is to compute:
//!
//! ```text
//!   1 / 2pi = 0.15915494309189533576888…
//!   10^4 / 2pi        = 1591.|5494309189533576888…      the window begins here
//!   times c                …|fraction of a turn, whole turns fall off on the left
//! ```
//!
//! The window is as long as a coefficient, as the digits that are kept, and as the zeros (or nines)
//! that an angle close to an axis may begin with.

use super::{Decimal, MAX_DIGITS};

/// The digits of `1 / 2pi` behind the point: as far as the greatest exponent and a window reach.
const INVERSE_TURN: &str = include_str!("inverse_turn.digits");
/// Digits that are computed with.
const WINDOW: usize = 180;
/// Digits that the result has.
const KEPT: usize = 56;

/// An angle without whole turns.
pub(super) struct ReducedAngle {
    /// Whole quarters of a turn, 0 to 3.
    pub(super) quadrant: u8,
    /// What is left, in quarters of a turn, between -0.5 and 0.5, as text.
    pub(super) quarters: String,
}

impl ReducedAngle {
    /// `None` for an angle that is small as it is, or is none.
    pub(super) fn of(angle: Decimal) -> Option<Self> {
        let Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } = angle
        else {
            return None;
        };
        if coefficient == 0 || angle.magnitude_power() < 0 {
            return None;
        }
        let mut digits = fraction_of_turn(coefficient, exponent);
        let mut quadrant = times_four(&mut digits);
        // From the nearest axis, on either side of it.
        let beyond = digits[0] >= 5;
        if beyond {
            quadrant = (quadrant + 1) % 4;
            for digit in &mut digits {
                *digit = 9 - *digit;
            }
        }
        // Angles below the axis run the other way round.
        if negative {
            quadrant = (4 - quadrant) % 4;
        }
        let zeros = digits.iter().take_while(|digit| **digit == 0).count();
        let kept = digits.iter().skip(zeros).take(KEPT);
        let mut quarters = String::with_capacity(KEPT + 8);
        if beyond != negative {
            quarters.push('-');
        }
        quarters.push_str("0.");
        quarters.extend(kept.map(|digit| char::from(b'0' + digit)));
        quarters.push_str(&format!("E-{zeros}"));
        Some(Self { quadrant, quarters })
    }
}

/// The digits behind the point of `coefficient * 10^exponent / 2pi`.
fn fraction_of_turn(coefficient: u128, exponent: i32) -> Vec<u8> {
    let known = INVERSE_TURN.bytes().filter(u8::is_ascii_digit);
    let zeros = usize::try_from(-exponent).unwrap_or(0);
    let window = std::iter::repeat_n(b'0', zeros)
        .chain(known.skip(usize::try_from(exponent).unwrap_or(0)))
        .take(WINDOW);
    let mut digits: Vec<u8> = window.map(|digit| digit - b'0').collect();
    assert!(
        digits.len() == WINDOW && zeros <= MAX_DIGITS as usize,
        "the digits reach as far as exponents and windows do"
    );
    let mut carry = 0;
    for digit in digits.iter_mut().rev() {
        carry += coefficient * u128::from(*digit);
        *digit = (carry % 10) as u8;
        carry /= 10;
    }
    digits
}

/// Multiplies a fraction; what comes before the point is returned.
fn times_four(digits: &mut [u8]) -> u8 {
    let mut carry = 0;
    for digit in digits.iter_mut().rev() {
        carry += *digit * 4;
        *digit = carry % 10;
        carry /= 10;
    }
    carry
}
