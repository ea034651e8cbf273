//! Conversions.
use super::Hooks;
use super::decoder::Decoder;
use crate::emulate::floats::*;
use crate::emulate::ops::Copy;
use crate::emulate::rounded::{Brain, F32To, F32ToTf32Rounded, Finish, Half as Half16};
use crate::error::{Error, Result};
use crate::ptx::modifier::*;

impl<H: Hooks> Decoder<'_, H> {
    pub fn cvt(&mut self, rnd: CvtRound, ftz: Ftz, sat: Sat, to: CvtType, from: CvtType, d: u16, a: u16) -> Result<()> {
        let conversion = Conversion {
            rnd,
            flushes: ftz == Ftz::Yes,
            saturates: sat == Sat::Yes,
            to,
            from,
        };
        if ftz == Ftz::No && sat == Sat::No && self.plain_conversion(rnd, to, from, d, a) {
            return Ok(());
        }
        if conversion.apply(0).is_none() {
            return Err(Error::unsupported(format!(
                "cvt{}{}{}.{}.{} in the emulator",
                rnd.text(),
                ftz.text(),
                sat.text(),
                to.text(),
                from.text()
            ))
            .remedy("convert in two steps, through a 32-bit type"));
        }
        let code = conversion.code();
        let width = |ty: CvtType| ty.slot().class.bits();
        match (width(from), width(to)) {
            (16, 16) => self.op1::<Convert<u16, u16>>(d, a, code),
            (16, 32) => self.op1::<Convert<u16, u32>>(d, a, code),
            (16, _) => self.op1::<Convert<u16, u64>>(d, a, code),
            (32, 16) => self.op1::<Convert<u32, u16>>(d, a, code),
            (32, 32) => self.op1::<Convert<u32, u32>>(d, a, code),
            (32, _) => self.op1::<Convert<u32, u64>>(d, a, code),
            (_, 16) => self.op1::<Convert<u64, u16>>(d, a, code),
            (_, 32) => self.op1::<Convert<u64, u32>>(d, a, code),
            _ => self.op1::<Convert<u64, u64>>(d, a, code),
        }
        Ok(())
    }

    /// Conversions that are worth a loop of their own: whether it is one.
    fn plain_conversion(&mut self, rnd: CvtRound, to: CvtType, from: CvtType, d: u16, a: u16) -> bool {
        use CvtType::*;
        match (to, from, rnd) {
            (F32, F16, CvtRound::None) => self.op1::<F16ToF32>(d, a, 0),
            (F32, BF16, CvtRound::None) => self.op1::<BF16ToF32>(d, a, 0),
            (F16, F32, CvtRound::Rn) => self.op1::<F32ToF16>(d, a, 0),
            (BF16, F32, CvtRound::Rn) => self.op1::<F32ToBF16>(d, a, 0),
            (F32, S32, CvtRound::Rn) => self.op1::<S32ToF32>(d, a, 0),
            (F32, U32, CvtRound::Rn) => self.op1::<U32ToF32>(d, a, 0),
            (S32, F32, CvtRound::Rzi) => self.op1::<F32ToS32>(d, a, 0),
            (U64 | S64, U32, CvtRound::None) => self.op1::<ZeroExtend32>(d, a, 0),
            (U64 | S64, S32, CvtRound::None) => self.op1::<SignExtend32>(d, a, 0),
            (U32 | S32, U64 | S64, CvtRound::None) => self.op1::<Low32>(d, a, 0),
            (U16 | S16, U32 | S32, CvtRound::None) => self.op1::<Low16>(d, a, 0),
            (U32 | S32, U16, CvtRound::None) => self.op1::<ZeroExtend16>(d, a, 0),
            (U32 | S32, S16, CvtRound::None) => self.op1::<SignExtend16>(d, a, 0),
            (U32 | S32, U32 | S32, CvtRound::None) => self.op1::<Copy<u32>>(d, a, 0),
            (U64 | S64, U64 | S64, CvtRound::None) => self.op1::<Copy<u64>>(d, a, 0),
            _ => return false,
        }
        true
    }
    pub fn cvt_pair(&mut self, rnd: Round, relu: Relu, to: Pair16, d: u16, a: u16, b: u16) {
        match (rnd, relu, to) {
            (Round::Rn, Relu::No, Pair16::F16x2) => self.op2::<PackF16>(d, a, b, 0),
            (Round::Rn, Relu::No, Pair16::BF16x2) => self.op2::<PackBF16>(d, a, b, 0),
            _ => self.op2::<PackRounded>(d, a, b, rnd as u32 | (relu as u32) << 2 | (to as u32) << 3),
        }
    }
    pub fn cvt_tf32_rounded(&mut self, rnd: Round, relu: Relu, d: u16, a: u16) {
        let how = match relu {
            Relu::Yes => Finish::of(rnd).clamped(),
            Relu::No => Finish::of(rnd),
        };
        self.op1::<F32ToTf32Rounded>(d, a, how.code());
    }
    pub fn cvt_relu(&mut self, rnd: Round, to: Scalar16Type, d: u16, a: u16) {
        let code = Finish::of(rnd).clamped().code();
        match to {
            Scalar16Type::F16 => self.op1::<F32To<Half16>>(d, a, code),
            Scalar16Type::BF16 => self.op1::<F32To<Brain>>(d, a, code),
        }
    }
}
