-- Applies a rate limit, as `Gcra` in router/src/rate_limit.rs, by the server's clock.
-- KEYS: limit. ARGV: interval in microseconds, burst in microseconds.
-- Returns 0, or the microseconds to wait.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- The minimum bounds the wait that a forged value can cause.
local arrival = math.min(tonumber(redis.pcall('GET', KEYS[1]) or now) or now, now + ARGV[2])
arrival = math.max(arrival, now) + ARGV[1]
if arrival - now > tonumber(ARGV[2]) then return arrival - now - ARGV[2] end
redis.call('SET', KEYS[1], string.format('%.0f', arrival), 'PX', math.ceil((arrival - now) / 1000))
return 0
