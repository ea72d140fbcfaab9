/* SPDX-License-Identifier: Apache-2.0 */
/* The errors of S3: code, status, sentence. "List of error codes" of the API reference. */
#include "wire/s3/s3_server.h"
#include "wire/s3/xml.h"

static const struct {
    const char *name;
    unsigned status;
    const char *message;
} codes[S3_CODES] = {
    [S3_OK] = {"", 200, ""},
    [S3_ACCESS_DENIED] = {"AccessDenied", 403, "Access Denied"},
    [S3_AUTH_HEADER_MALFORMED] = {"AuthorizationHeaderMalformed", 400,
                                  "The authorization header that you provided is not valid."},
    [S3_AUTH_QUERY_MALFORMED] = {"AuthorizationQueryParametersError", 400,
                                 "The authorization query parameters that you provided are not valid."},
    [S3_BAD_DIGEST] = {"BadDigest", 400, "The Content-MD5 you specified did not match what we received."},
    [S3_BUCKET_EXISTS] = {"BucketAlreadyExists", 409,
                          "The requested bucket name is not available. Please select a different name."},
    [S3_BUCKET_OWNED] =
        {"BucketAlreadyOwnedByYou", 409,
         "Your previous request to create the named bucket succeeded and you already own it."},
    [S3_BUCKET_NOT_EMPTY] = {"BucketNotEmpty", 409, "The bucket you tried to delete is not empty"},
    [S3_CHECKSUM_MISMATCH] = {"BadDigest", 400,
                              "The checksum you specified did not match the calculated checksum."},
    [S3_CONDITION_BUSY] = {"ConditionalRequestConflict", 409,
                           "A conflicting operation occurred during this request. Try again."},
    [S3_CONTENT_SHA_MISMATCH] =
        {"XAmzContentSHA256Mismatch", 400,
         "The provided 'x-amz-content-sha256' header does not match what was computed."},
    [S3_ENTITY_TOO_LARGE] = {"EntityTooLarge", 400, "Your proposed upload exceeds the maximum allowed size."},
    [S3_ENTITY_TOO_SMALL] = {"EntityTooSmall", 400,
                             "Your proposed upload is smaller than the minimum allowed size"},
    [S3_ILLEGAL_LOCATION] = {"IllegalLocationConstraintException", 400,
                             "The location constraint is not this server's region."},
    [S3_INCOMPLETE_BODY] = {"IncompleteBody", 400,
                            "The request body does not have the announced length, or is not well-formed."},
    [S3_INTERNAL] = {"InternalError", 500, "We encountered an internal error. Please try again."},
    [S3_INVALID_ACCESS_KEY] = {"InvalidAccessKeyId", 403,
                               "The AWS Access Key Id you provided does not exist in our records."},
    [S3_INVALID_ARGUMENT] = {"InvalidArgument", 400, "Invalid Argument"},
    [S3_INVALID_BUCKET] = {"InvalidBucketName", 400, "The specified bucket is not valid."},
    [S3_INVALID_DIGEST] = {"InvalidDigest", 400, "The Content-MD5 you specified was invalid."},
    [S3_INVALID_PART] = {"InvalidPart", 400,
                         "One or more of the specified parts could not be found, or an ETag did not match."},
    [S3_INVALID_PART_NUMBER] = {"InvalidPartNumber", 416, "The requested partnumber is not satisfiable"},
    [S3_INVALID_PART_ORDER] =
        {"InvalidPartOrder", 400,
         "The list of parts was not in ascending order. Parts must be ordered by part number."},
    [S3_INVALID_RANGE] = {"InvalidRange", 416, "The requested range is not satisfiable"},
    [S3_INVALID_REQUEST] = {"InvalidRequest", 400, "Invalid Request"},
    [S3_INVALID_STORAGE_CLASS] = {"InvalidStorageClass", 400, "The storage class you specified is not valid"},
    [S3_INVALID_TOKEN] =
        {"InvalidToken", 400,
         "The provided token is malformed or otherwise invalid: this server has no temporary keys"},
    [S3_INVALID_URI] = {"InvalidURI", 400, "Couldn't parse the specified URI."},
    [S3_KEY_TOO_LONG] = {"KeyTooLongError", 400, "Your key is too long"},
    [S3_MALFORMED_TRAILER] = {"MalformedTrailerError", 400,
                              "The request contained trailing data that was not well-formed or did not "
                              "conform to our published schema."},
    [S3_MALFORMED_XML] =
        {"MalformedXML", 400,
         "The XML you provided was not well-formed or did not validate against our published schema"},
    [S3_METADATA_TOO_LARGE] = {"MetadataTooLarge", 400,
                               "Your metadata headers exceed the maximum allowed metadata size"},
    [S3_METHOD_NOT_ALLOWED] = {"MethodNotAllowed", 405,
                               "The specified method is not allowed against this resource."},
    [S3_MISSING_LENGTH] = {"MissingContentLength", 411, "You must provide the Content-Length HTTP header."},
    [S3_NO_SUCH_BUCKET] = {"NoSuchBucket", 404, "The specified bucket does not exist"},
    [S3_NO_SUCH_KEY] = {"NoSuchKey", 404, "The specified key does not exist."},
    [S3_NO_SUCH_UPLOAD] = {"NoSuchUpload", 404,
                           "The specified upload does not exist. The upload ID may be invalid, or the upload "
                           "may have been aborted or completed."},
    [S3_NO_SUCH_VERSION] = {"NoSuchVersion", 404, "The specified version does not exist."},
    [S3_NO_BUCKET_POLICY] = {"NoSuchBucketPolicy", 404, "The bucket policy does not exist"},
    [S3_NO_CORS] = {"NoSuchCORSConfiguration", 404, "The CORS configuration does not exist"},
    [S3_NO_ENCRYPTION] = {"ServerSideEncryptionConfigurationNotFoundError", 404,
                          "The server side encryption configuration was not found"},
    [S3_NO_LIFECYCLE] = {"NoSuchLifecycleConfiguration", 404, "The lifecycle configuration does not exist"},
    [S3_NO_OBJECT_LOCK] = {"ObjectLockConfigurationNotFoundError", 404,
                           "Object Lock configuration does not exist for this bucket"},
    [S3_NO_OWNERSHIP] = {"OwnershipControlsNotFoundError", 404,
                         "The bucket ownership controls were not found"},
    [S3_NO_PUBLIC_ACCESS_BLOCK] = {"NoSuchPublicAccessBlockConfiguration", 404,
                                   "The public access block configuration was not found"},
    [S3_NO_REPLICATION] = {"ReplicationConfigurationNotFoundError", 404,
                           "The replication configuration was not found"},
    [S3_NO_TAGS] = {"NoSuchTagSet", 404, "The TagSet does not exist"},
    [S3_NO_WEBSITE] = {"NoSuchWebsiteConfiguration", 404,
                       "The specified bucket does not have a website configuration"},
    [S3_NOT_IMPLEMENTED] = {"NotImplemented", 501,
                            "A header or query you provided implies functionality that is not implemented."},
    [S3_NOT_MODIFIED] = {"NotModified", 304, "Not Modified"},
    [S3_PRECONDITION_FAILED] = {"PreconditionFailed", 412,
                                "At least one of the pre-conditions you specified did not hold"},
    [S3_REMOTE_REFUSED] = {"BadGateway", 502, "The bucket's remote refused this."},
    [S3_REMOTE_TIMEOUT] = {"GatewayTimeout", 504, "The bucket's remote did not answer in time."},
    [S3_REQUEST_TIMEOUT] =
        {"RequestTimeout", 400,
         "Your socket connection to the server was not read from or written to within the timeout period."},
    [S3_SIGNATURE_MISMATCH] = {"SignatureDoesNotMatch", 403,
                               "The request signature we calculated does not match the signature you "
                               "provided. Check your key and signing method."},
    [S3_SLOW_DOWN] = {"SlowDown", 503, "Please reduce your request rate."},
    [S3_STORAGE_FULL] = {"StorageFull", 507,
                         "The disks of this server are full. Free some space, then try again."},
    [S3_TIME_SKEWED] = {"RequestTimeTooSkewed", 403,
                        "The difference between the request time and the current time is too large."},
    [S3_UNAVAILABLE] = {"ServiceUnavailable", 503, "Service is unable to handle request."},
};

const char *s3_code_name(enum s3_code code)
{
    return codes[code].name;
}

unsigned s3_code_status(enum s3_code code)
{
    return codes[code].status;
}

const char *s3_code_message(enum s3_code code)
{
    return codes[code].message;
}

void s3_error_put(struct bytes_out *out, enum s3_code code, const char *message, const char *resource,
                  size_t resource_len, const char *request_id, const char *region)
{
    http_put(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
    s3_element(out, "Code", codes[code].name, strlen(codes[code].name));
    if (!message)
        message = codes[code].message;
    s3_element(out, "Message", message, strlen(message));
    if (region)
        s3_element(out, "Region", region, strlen(region));
    s3_element(out, "Resource", resource, resource_len);
    s3_element(out, "RequestId", request_id, strlen(request_id));
    http_put(out, "</Error>");
}
