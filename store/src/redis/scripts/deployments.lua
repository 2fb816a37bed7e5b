-- Adds a deployment, if there is one, and returns the newest ones.
-- KEYS: deployments. ARGV: how many are kept, how many are returned, TTL in milliseconds, the deployment or nothing, the one that it
-- replaces or nothing. If the replaced one is not there, nothing is added: another replica has replaced it.
-- Returns the deployments, the last one that was added first.
local key = KEYS[1]
local kind = redis.call('TYPE', key).ok
if kind ~= 'list' and kind ~= 'none' then redis.call('DEL', key) end
if ARGV[4] and not (ARGV[5] and redis.call('LREM', key, 1, ARGV[5]) == 0) then
  redis.call('LPUSH', key, ARGV[4])
  redis.call('LTRIM', key, 0, ARGV[1] - 1)
  redis.call('PEXPIRE', key, ARGV[3])
end
if tonumber(ARGV[2]) == 0 then return {} end
return redis.call('LRANGE', key, 0, ARGV[2] - 1)
