//! Limits the processor time that unauthenticated peers use.
//!
//! A token bucket of processor time. Bursts of up to `BURST` pass at once, enough for dozens of ordinary handshakes. In the long run
//! unauthenticated peers get one part in `SHARE` of one thread. No I/O, no clock.

use std::time::{Duration, Instant};

/// Processor time that is available after an idle period: 40 handshakes with certificates, each of which takes up to 1 ms.
const BURST: Duration = Duration::from_millis(40);
/// Unauthenticated peers get one part in `SHARE` of a thread's time: connection floods leave four fifths to the traffic of the job.
const SHARE: u32 = 5;
/// A pause lasts until this much processor time is available again, enough for one handshake.
const ENOUGH: Duration = Duration::from_millis(1);

/// The bucket. The poller owns one for all unauthenticated peers together.
#[derive(Default)]
pub struct Allowance {
    /// The fill of the bucket at the time `counted`: time that was spent and has not been refilled.
    used: Duration,
    counted: Option<Instant>,
}

impl Allowance {
    /// Counts processor time that was spent until `now`. Returns how long no more may be spent, if the limit is exceeded.
    pub fn spend(&mut self, spent: Duration, now: Instant) -> Option<Duration> {
        let passed = self.counted.replace(now).map_or(Duration::MAX, |at| now.saturating_duration_since(at));
        self.used = self.used.saturating_sub(passed / SHARE) + spent;
        (self.used > BURST).then(|| (self.used + ENOUGH - BURST) * SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn burst_passes_without_a_pause() {
        let (mut allowance, now) = (Allowance::default(), Instant::now());
        assert_eq!((0..40).filter_map(|_| allowance.spend(ms(1), now)).count(), 0);
        assert_eq!(allowance.spend(ms(1), now), Some(ms(10)));
    }

    #[test]
    fn flood_gets_its_share_and_no_more() {
        let (mut allowance, mut now, mut used) = (Allowance::default(), Instant::now(), ms(0));
        let start = now;
        while now < start + ms(10_000) {
            now += ms(2);
            used += ms(2);
            now += allowance.spend(ms(2), now).unwrap_or_default();
        }
        assert!(used >= ms(10_000) / SHARE && used <= ms(10_000) / SHARE + BURST + ms(4), "{used:?}");
    }

    #[test]
    fn quiet_while_restores_the_burst() {
        let (mut allowance, now) = (Allowance::default(), Instant::now());
        assert!(allowance.spend(ms(200), now).is_some());
        assert_eq!(allowance.spend(ms(39), now + ms(1000)), None);
    }
}
