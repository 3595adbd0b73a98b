//! Natural numbers of any size: just enough to compare and convert doubles and
//! decimals exactly.
//!
//! A double is `m * 2^e`, a decimal `c * 10^q`; to know which is larger without
//! rounding, both are multiplied out to whole numbers. These reach some 2,300
//! bits. Little-endian limbs without leading zeros; zero has no limbs.
//!
//! Deliberately absent: division by another natural, signs, speed beyond that.

use std::cmp::Ordering;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Natural {
    limbs: Vec<u64>,
}

impl Natural {
    pub(crate) fn new(value: u128) -> Self {
        let mut natural = Self {
            limbs: vec![value as u64, (value >> 64) as u64],
        };
        natural.trim();
        natural
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.limbs.is_empty()
    }

    /// How many bits the number takes: 0 for zero.
    pub(crate) fn bit_length(&self) -> u32 {
        match self.limbs.last() {
            Some(top) => self.limbs.len() as u32 * 64 - top.leading_zeros(),
            None => 0,
        }
    }

    pub(crate) fn multiply_small(&mut self, factor: u64) {
        let mut carry = 0u128;
        for limb in &mut self.limbs {
            let product = u128::from(*limb) * u128::from(factor) + carry;
            *limb = product as u64;
            carry = product >> 64;
        }
        if carry > 0 {
            self.limbs.push(carry as u64);
        }
        self.trim();
    }

    /// Multiplies by `10^exponent`.
    pub(crate) fn scale_by_ten(&mut self, exponent: u32) {
        const LARGEST: u32 = 19;
        let mut rest = exponent;
        while rest > 0 {
            let step = rest.min(LARGEST);
            self.multiply_small(10u64.pow(step));
            rest -= step;
        }
    }

    /// Multiplies by `5^exponent`.
    pub(crate) fn scale_by_five(&mut self, exponent: u32) {
        for _ in 0..exponent {
            self.multiply_small(5);
        }
    }

    pub(crate) fn shift_left(&mut self, bits: u32) {
        if self.is_zero() {
            return;
        }
        let small = bits % 64;
        if small > 0 {
            let mut carry = 0;
            for limb in &mut self.limbs {
                let shifted = (*limb << small) | carry;
                carry = *limb >> (64 - small);
                *limb = shifted;
            }
            if carry > 0 {
                self.limbs.push(carry);
            }
        }
        let whole = (bits / 64) as usize;
        self.limbs.splice(0..0, std::iter::repeat_n(0, whole));
    }

    /// Subtracts a number that is not larger.
    pub(crate) fn subtract(&mut self, other: &Natural) {
        let mut borrow = false;
        for (at, limb) in self.limbs.iter_mut().enumerate() {
            let right = other.limbs.get(at).copied().unwrap_or(0);
            let (first, under_first) = limb.overflowing_sub(right);
            let (second, under_second) = first.overflowing_sub(u64::from(borrow));
            *limb = second;
            borrow = under_first || under_second;
        }
        assert!(!borrow, "a natural number is never negative");
        self.trim();
    }

    /// Divides in place and returns the remainder.
    pub(crate) fn divide_small(&mut self, divisor: u64) -> u64 {
        let mut remainder = 0u128;
        for limb in self.limbs.iter_mut().rev() {
            let value = (remainder << 64) | u128::from(*limb);
            *limb = (value / u128::from(divisor)) as u64;
            remainder = value % u128::from(divisor);
        }
        self.trim();
        remainder as u64
    }

    pub(crate) fn to_u128(&self) -> Option<u128> {
        match *self.limbs.as_slice() {
            [] => Some(0),
            [low] => Some(low.into()),
            [low, high] => Some(u128::from(low) | (u128::from(high) << 64)),
            _ => None,
        }
    }

    fn trim(&mut self) {
        while self.limbs.last() == Some(&0) {
            self.limbs.pop();
        }
    }
}

impl PartialOrd for Natural {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Natural {
    fn cmp(&self, other: &Self) -> Ordering {
        self.limbs
            .len()
            .cmp(&other.limbs.len())
            .then_with(|| self.limbs.iter().rev().cmp(other.limbs.iter().rev()))
    }
}
