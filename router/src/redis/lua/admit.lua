-- The rule of `Pace` (router/src/limit.rs), by the server's clock: 0, or the microseconds to wait.
-- KEYS: limit. ARGV: microseconds each one costs, microseconds that may be owed.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local owed = math.min(tonumber(redis.pcall('GET', KEYS[1]) or now) or now, now + ARGV[2])
local due = math.max(owed, now) + ARGV[1]
if due - now > tonumber(ARGV[2]) then return due - now - ARGV[2] end
redis.call('SET', KEYS[1], string.format('%.0f', due), 'PX', math.ceil((due - now) / 1000))
return 0
