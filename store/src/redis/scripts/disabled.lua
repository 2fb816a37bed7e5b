-- Reads the record of the kill switch, or replaces it by a newer one.
-- KEYS: disabled. ARGV: greatest length in bytes, then nothing, or: version, record, channel, event, and the version of the
-- record to replace, or '' to replace any older one. The version of no record is 0, that of a malformed one -1.
-- Returns 1 if it was replaced, else 0, and the record that is stored now; '' if there is none, '!' if the key has a wrong type.
local stored = redis.pcall('GETRANGE', KEYS[1], 0, ARGV[1])
if type(stored) ~= 'string' then stored = '!' end
if not ARGV[2] then return { 0, stored } end
local version = stored == '' and '0' or string.match(stored, '^%[1,(%d+),') or '-1'
local replace = version == ARGV[6]
if ARGV[6] == '' then replace = version ~= '-1' and tonumber(version) < tonumber(ARGV[2]) end
if not replace then return { 0, stored } end
redis.call('SET', KEYS[1], ARGV[3])
redis.call('PUBLISH', ARGV[4], ARGV[5])
return { 1, ARGV[3] }
