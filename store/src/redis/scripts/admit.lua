-- Applies rate limits, as `Gcra` in store/src/gcra.rs, by the server's clock.
-- KEYS: limits, on one node of a Cluster. ARGV: for each, interval in microseconds, burst in microseconds.
-- Returns 0 and 0, or the position of the first limit that is reached and the microseconds to wait. The limits before it
-- have counted the event.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for i, key in ipairs(KEYS) do
  local interval, burst = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  -- The minimum bounds the wait that a forged value can cause.
  local arrival = math.min(tonumber(redis.pcall('GET', key) or now) or now, now + burst)
  arrival = math.max(arrival, now) + interval
  if arrival - now > burst then return { i, arrival - now - burst } end
  redis.call('SET', key, string.format('%.0f', arrival), 'PX', math.ceil((arrival - now) / 1000))
end
return { 0, 0 }
