//! Abbreviations of time zones that dates may name, with their offsets.
//!
//! They were asked from the real server, one by one. Summer time has names of its own.

/// Seconds east of Greenwich, and the names.
const ZONES: &[(i64, &str)] = &[
    (-43_200, "Y"),
    (-39_600, "SST X"),
    (-36_000, "AHST BDT HST W"),
    (-34_200, "HDT HWT"),
    (-32_400, "AHDT AKST V YST"),
    (-28_800, "AKDT PST U YDT YWT"),
    (-26_248, "EMT"),
    (-25_200, "MST PDT PPT PWT T YDDT"),
    (-21_600, "CST MDT MPT MWT S"),
    (-20_173, "SJMT"),
    (-19_776, "HMT"),
    (-18_840, "QMT"),
    (-18_000, "CDT CPT CWT EST R"),
    (-17_340, "PPMT"),
    (-16_800, "SDMT"),
    (-15_408, "CMT"),
    (-14_660, "FFMT"),
    (-14_400, "AST EDT EPT EWT Q"),
    (-14_309, "BMT"),
    (-13_884, "SMT"),
    (-13_840, "AMT"),
    (-13_236, "PMT"),
    (-12_600, "NST"),
    (-10_800, "ADT APT AWT EDDT P"),
    (-9052, "NDT"),
    (-9000, "NPT NWT"),
    (-7200, "O"),
    (-4056, "FMT"),
    (-3600, "N"),
    (-1521, "DMT"),
    (0, "GMT UCT UTC WET Z"),
    (3600, "A BST CET MET WAT WEST"),
    (5040, "WMT"),
    (5736, "KMT"),
    (5794, "RMT"),
    (7200, "B BDST CAT CEST EET IST MEST SAST WAST WEMT"),
    (8440, "JMT"),
    (9017, "MMT"),
    (10_751, "TBMT"),
    (10_800, "C CEMT EAT EEST IDT MSK"),
    (12_344, "TMT"),
    (14_400, "D MSD"),
    (18_000, "E PKT"),
    (21_600, "F"),
    (25_025, "IMT"),
    (25_200, "G WIB"),
    (25_590, "PLMT"),
    (28_800, "AWST H HKT WITA"),
    (30_600, "KST"),
    (32_400, "AWDT HKST I JST WIT"),
    (34_200, "ACST CAST"),
    (36_000, "AEST CHST GST JDT K KDT"),
    (37_800, "ACDT"),
    (39_600, "AEDT GDT L"),
    (41_400, "NZMT"),
    (43_200, "M NZST"),
    (46_800, "NZDT"),
];

/// The offset of a zone by its abbreviation, in any case.
pub(super) fn zone_offset_s(name: &str) -> Option<i64> {
    let is_meant = |names: &str| names.split(' ').any(|one| one.eq_ignore_ascii_case(name));
    let found = ZONES.iter().find(|(_, names)| is_meant(names));
    found.map(|(offset, _)| *offset)
}
